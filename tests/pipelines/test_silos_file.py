"""silos.yaml, and the store commands that need no server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.errors import InputError
from pipelines.silos import read_silos
from tests.pipelines.commands import command, finish, invoke

GOOD = "store: s3://store.example:9000/fed\nsilos:\n- name: b\n- name: a-2\n"


def written(folder: Path, text: str) -> Path:
    path = folder / "silos.yaml"
    path.write_text(text)
    return path


def test_a_good_file(tmp_path: Path) -> None:
    file = read_silos(written(tmp_path, GOOD))
    assert (file.store, file.names) == ("s3://store.example:9000/fed", ["a-2", "b"])


BAD = {
    "store: s3://h/f\nsilos: [{nmae: a}]": "unknown field 'silos.0.nmae': did you mean 'name'",
    "store: s3://h/f\nsilo: [{name: a}]": "unknown field 'silo': did you mean 'silos'",
    "store: s3://h/f\nsilos: [{name: a}]\nregion: eu": "unknown field 'region': expected one of ca_secret, evaluator, image, server,",
    "silos: [{name: a}]": "store: missing; it is required",
    "store: s3://h/f\nsilos: []": "silos: tuple should have at least 1 item",
    "store: s3://h/f\nsilos: [{name: A}]": "silos.0.name: expected 1 to 63 of a-z 0-9 -, no - at either end, found 'A'",
    "store: s3://h/f\nsilos: [{name: a-}]": "no - at either end, found 'a-'",
    "store: s3://h/f\nsilos: [{name: a}, {name: ../b}]": r"silos.1.name: .* found '../b'",
    f"store: s3://h/f\nsilos: [{{name: {'a' * 64}}}]": "expected 1 to 63",
    "store: s3://h/f\nsilos: [{name: server}]": "expected another name than admin, evaluator, global, server, found 'server'",
    "store: s3://h/f\nsilos: [{name: a}, {name: b}, {name: a}]": "expected every name once, 'a' is there twice",
    "store: s3://h/f\nsilos: [{name: 1}]": "silos.0.name: input should be a valid string",
    "store: s3://h/f\nsilos: a": "silos: input should be a valid tuple",
    "- a": "expected a mapping of fields, found a list",
    "a: [": "not valid YAML at line",
    "a: &x b\nc: *x": "an alias",
}


@pytest.mark.parametrize("text", BAD)
def test_a_bad_file_is_one_line(text: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=BAD[text]) as error:
        read_silos(written(tmp_path, text))
    assert "\n" not in str(error.value)
    assert str(error.value).startswith("silos file ")


def test_policies_as_json(tmp_path: Path) -> None:
    answer = invoke("store", "policies", written(tmp_path, GOOD), "--json")
    printed = json.loads(answer.stdout)
    assert printed["buckets"] == ["fed-global", "fed-evaluator", "fed-silo-a-2", "fed-silo-b"]
    assert list(printed["policies"]) == ["server", "evaluator", "a-2", "b"]
    assert {"arn:aws:s3:::fed-silo-b", "arn:aws:s3:::fed-global"} == set(printed["policies"]["b"]["Statement"][0]["Resource"])
    text = invoke("store", "policies", written(tmp_path, GOOD)).stdout
    assert all(name in text for name in [*printed["buckets"], "policy of server", "policy of a-2"])


@pytest.mark.parametrize(
    ("store", "line"),
    [
        ("file:///tmp/fed", "expected s3://host"),
        ("s3://user:canary@h/f", "found another form; keep keys"),
        ("s3://h/fed-silo", "expected a prefix without '-silo'"),
        (f"s3://h/{'f' * 60}", "3 to 63 of a-z"),
    ],
)
@pytest.mark.parametrize("words", [("policies",), ("provision", "--credentials", "keys")])
def test_a_store_that_will_not_do(store: str, line: str, words: tuple[str, ...], tmp_path: Path) -> None:
    file = written(tmp_path, f"store: {store}\nsilos: [{{name: a}}]")
    keys = {"SILOFLOW_ACCESS_KEY": "nobody", "SILOFLOW_SECRET_KEY": "nothing", "PATH": ""}
    code, out, err = finish(command("store", words[0], file, *words[1:], cwd=tmp_path, env=keys))
    assert (code, out) == (2, "")
    assert line in err
    assert err.count("\n") == 1
    assert "canary" not in err
    assert not (tmp_path / "keys").exists()
