from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from fl_algorithms.data.partition import PartitionRule, Share, listed_split, partition, split
from fl_algorithms.errors import Unusable

# Pictures per class of PACS, in alphabetical order of the classes.
PACS = {
    "art_painting": (379, 255, 285, 184, 201, 295, 449),
    "cartoon": (389, 457, 346, 135, 324, 288, 405),
    "photo": (189, 202, 182, 186, 199, 280, 432),
}

label_arrays = st.lists(st.integers(0, 4), min_size=1, max_size=80).map(lambda labels: np.array(labels, np.int64))


def pacs_splits(seed: int = 0) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    return {name: split(np.repeat(np.arange(7), counts), 0.1, seed, name) for name, counts in PACS.items()}


def sizes(shares: dict[str, Share]) -> dict[str, int]:
    return {name: sum(map(len, share.train.values())) for name, share in shares.items()}


def assert_nothing_lost_or_doubled(shares: dict[str, Share], splits: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    for domain, (train, validation) in splits.items():
        dealt = [share.train[domain] for share in shares.values() if domain in share.train]
        assert sorted(np.concatenate(dealt)) == sorted(train)
        held = [share.validation[domain] for share in shares.values() if domain in share.validation]
        assert sorted(np.concatenate([*held, np.array([], np.int64)])) == sorted(validation)


@given(label_arrays, st.floats(0, 0.99), st.integers(0, 2**40))
def test_split_keeps_every_picture_once_and_every_class_in_training(labels: np.ndarray, fraction: float, seed: int) -> None:
    train, validation = split(labels, fraction, seed, "photo")
    assert sorted(np.concatenate([train, validation])) == list(range(len(labels)))
    assert set(labels[train]) == set(labels)
    for label in set(labels):
        count = int((labels == label).sum())
        assert (labels[validation] == label).sum() == min(round(fraction * count), count - 1)


@given(label_arrays, st.integers(0, 1000))
def test_split_keeps_groups_together(labels: np.ndarray, seed: int) -> None:
    doubled, groups = np.repeat(labels, 2), np.repeat(np.arange(len(labels)) * 7, 2)
    train, validation = split(doubled, 0.3, seed, "neon", groups)
    assert not set(groups[train]) & set(groups[validation])
    assert sorted(np.concatenate([train, validation])) == list(range(len(doubled)))


def test_split_holds_out_whole_writers_in_proportion() -> None:
    """Groups of many classes: 80 % of the writers train, 20 % validate (FedDANN), whatever they wrote."""
    random = np.random.default_rng(0)
    groups = np.sort(random.integers(0, 167, 5000))
    train, validation = split(random.integers(0, 62, 5000), 0.2, 0, "r15", groups)
    assert (len(set(groups[train])), len(set(groups[validation]))) == (134, 33)
    assert not set(groups[train]) & set(groups[validation])


def test_a_listed_split_is_that_of_the_lists_in_another_order() -> None:
    held_out = np.arange(100) % 3 == 0
    train, validation = listed_split(held_out, 0, "photo")
    assert sorted(validation) == list(range(0, 100, 3))
    assert sorted(train) == [index for index in range(100) if index % 3]
    assert train.tolist() != sorted(train)  # consecutive parts of it go to silos
    np.testing.assert_array_equal(train, listed_split(held_out, 0, "photo")[0])
    with pytest.raises(Unusable, match=r"expected pictures in both lists of photo, found 0 held out of 3"):
        listed_split(np.zeros(3, bool), 0, "photo")


def test_split_depends_on_seed_and_domain_only() -> None:
    labels = np.repeat(np.arange(7), PACS["photo"])
    first = split(labels, 0.1, 3, "photo")
    np.testing.assert_array_equal(first[0], split(labels, 0.1, 3, "photo")[0])
    assert not np.array_equal(first[1], split(labels, 0.1, 4, "photo")[1])
    assert not np.array_equal(first[1], split(labels, 0.1, 3, "sketch")[1])
    # Shuffled: consecutive parts of the training indices must hold all classes.
    assert set(labels[first[0][:100]]) == set(range(7))


@pytest.mark.parametrize("fraction", [-0.1, 1.0, float("nan")])
def test_split_refuses_a_fraction_that_leaves_no_training(fraction: float) -> None:
    with pytest.raises(Unusable, match="validation fraction"):
        split(np.zeros(5, np.int64), fraction, 0, "photo")


def test_pacs_is_dealt_in_the_sizes_of_fedccrl() -> None:
    splits = pacs_splits()
    shares = partition(PartitionRule("domain", silos_per_domain=2), splits, 0)
    assert sum(len(validation) for _, validation in splits.values()) == 607
    by_domain = [{sizes(shares)[f"{name}-{number}"] for number in (1, 2)} for name in ("photo", "art-painting", "cartoon")]
    assert by_domain == [{751, 752}, {921, 922}, {1054, 1055}]
    assert_nothing_lost_or_doubled(shares, splits)


def test_one_silo_per_domain_has_the_name_of_the_domain() -> None:
    shares = partition(PartitionRule(), pacs_splits(), 0)
    assert list(shares) == ["art-painting", "cartoon", "photo"]
    assert all(len(share.train) == 1 for share in shares.values())


def test_the_training_pictures_of_a_silo_are_consecutive_in_the_shuffled_order() -> None:
    splits = pacs_splits()
    shares = partition(PartitionRule("domain", silos_per_domain=3), splits, 0)
    joined = np.concatenate([shares[f"photo-{number}"].train["photo"] for number in (1, 2, 3)])
    np.testing.assert_array_equal(joined, splits["photo"][0])


rules = st.one_of(
    st.builds(PartitionRule, st.just("domain"), silos_per_domain=st.integers(1, 6)),
    st.builds(PartitionRule, st.just("greedy"), silos=st.integers(2, 12)),
    st.builds(PartitionRule, st.just("dirichlet"), silos=st.integers(1, 8), alpha=st.floats(0.05, 100)),
    st.builds(PartitionRule, st.just("lambda"), silos=st.integers(2, 12), heterogeneity=st.floats(0, 1)),
)


@settings(max_examples=200)
@given(rules, st.integers(1, 60), st.integers(1, 200), st.integers(0, 1000))
def test_every_rule_uses_every_picture_exactly_once(rule: PartitionRule, small: int, large: int, seed: int) -> None:
    labels = {"a": np.arange(small) % 3, "b": np.arange(large) % 5}
    splits = {domain: split(array, 0.2, seed, domain) for domain, array in labels.items()}
    try:
        shares = partition(rule, splits, seed)
    except Unusable:
        reject()  # too few pictures for so many silos; tested below
    assert_nothing_lost_or_doubled(shares, splits)
    assert min(sizes(shares).values()) >= 1
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", name) for name in shares)


def test_equal_parts_differ_by_one_at_most() -> None:
    for count in range(1, 40):
        splits = {"a": (np.arange(157), np.arange(0))}
        parts = sizes(partition(PartitionRule("domain", silos_per_domain=count), splits, 0)).values()
        assert max(parts) - min(parts) <= 1


@given(st.lists(st.integers(0, 12), min_size=1, max_size=80), st.integers(1, 6), st.integers(0, 1000))
def test_rule_group_keeps_a_writer_in_one_silo(writers: list[int], count: int, seed: int) -> None:
    groups, labels = np.array(writers), np.arange(len(writers)) % 5
    splits = {"r0": split(labels, 0.2, seed, "r0", groups)}
    try:
        shares = partition(PartitionRule("group", silos_per_domain=count), splits, seed, {"r0": groups})
    except Unusable:
        reject()  # more silos than writers
    assert_nothing_lost_or_doubled(shares, splits)
    owners = [set(groups[share.train["r0"]].tolist()) for share in shares.values()]
    assert sum(map(len, owners)) == len(set().union(*owners))
    assert max(map(len, owners)) - min(map(len, owners)) <= 1


def test_rule_group_can_make_every_writer_a_silo() -> None:
    groups = np.repeat(np.arange(10), 7)
    splits = {"r0": split(np.arange(70) % 5, 0.2, 0, "r0", groups)}
    shares = partition(PartitionRule("group", silos_per_domain=8), splits, 0, {"r0": groups})
    assert list(shares) == [f"r0-{number}" for number in range(1, 9)]
    assert all(len(set(groups[share.train["r0"]])) == 1 for share in shares.values())
    with pytest.raises(Unusable, match=r"2 of 10 silos are empty"):
        partition(PartitionRule("group", silos_per_domain=10), splits, 0, {"r0": groups})
    with pytest.raises(Unusable, match=r"partition.rule: expected groups of pictures in r0, found none; set partition.rule=domain"):
        partition(PartitionRule("group"), splits, 0, {"r0": None})


def test_greedy_gives_more_silos_to_larger_domains() -> None:
    splits = {"a": (np.arange(100), np.arange(0)), "b": (np.arange(400), np.arange(0))}
    shares = partition(PartitionRule("greedy", silos=5), splits, 0)
    assert list(shares) == ["silo-01", "silo-02", "silo-03", "silo-04", "silo-05"]
    assert [list(share.train) for share in shares.values()] == [["a"], ["b"], ["b"], ["b"], ["b"]]
    assert set(sizes(shares).values()) == {100}


def test_lambda_goes_from_pure_to_homogeneous() -> None:
    splits = {"a": (np.arange(100), np.arange(10)), "b": (np.arange(100), np.arange(10))}
    pure = partition(PartitionRule("lambda", silos=2, heterogeneity=0.0), splits, 0)
    assert [list(share.train) for share in pure.values()] == [["a"], ["b"]]
    half = partition(PartitionRule("lambda", silos=2, heterogeneity=0.5), splits, 0)
    assert {name: len(part) for name, part in half["silo-01"].train.items()} == {"a": 75, "b": 25}
    even = partition(PartitionRule("lambda", silos=2, heterogeneity=1.0), splits, 0)
    assert {name: len(part) for name, part in even["silo-01"].train.items()} == {"a": 50, "b": 50}


def test_dirichlet_is_uneven_for_small_alpha_and_repeats_with_its_seed() -> None:
    splits = {"a": (np.arange(3000), np.arange(0)), "b": (np.arange(3000), np.arange(0))}

    def spread(alpha: float, seed: int) -> list[int]:
        return list(sizes(partition(PartitionRule("dirichlet", silos=3, alpha=alpha), splits, seed)).values())

    assert max(spread(1000.0, 1)) - min(spread(1000.0, 1)) < 400 < max(spread(0.5, 1)) - min(spread(0.5, 1))
    assert spread(0.5, 1) == spread(0.5, 1) != spread(0.5, 2)


def test_silos_without_training_pictures_are_refused() -> None:
    with pytest.raises(Unusable, match=r"none for a-2 \(2 of 4 silos are empty\); ask for fewer silos"):
        partition(PartitionRule("domain", silos_per_domain=4), {"a": (np.arange(2), np.arange(0))}, 0)


def test_fewer_silos_than_domains_are_refused() -> None:
    with pytest.raises(Unusable, match=r"partition.silos: .* each of 3 domains, found 2"):
        partition(PartitionRule("greedy", silos=2), pacs_splits(), 0)


@pytest.mark.parametrize("domains", [("Real World", "real_world"), ("***",), ("a" * 70,)])
def test_domains_that_give_no_silo_name_are_refused(domains: tuple[str, ...]) -> None:
    with pytest.raises(Unusable, match="rename"):
        partition(PartitionRule(), {domain: (np.arange(4), np.arange(1)) for domain in domains}, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("silos_per_domain", 0),
        ("silos", 0),
        ("alpha", 0.0),
        ("alpha", float("nan")),
        ("heterogeneity", 1.5),
        ("name", "dirichlett"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(field: str, value: object) -> None:
    with pytest.raises(Unusable, match=f"partition.{field}: expected"):
        PartitionRule(**{field: value})  # type: ignore[arg-type]
