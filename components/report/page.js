"use strict";
(() => {
  const root = document.documentElement;
  const all = (query, from = document) => [...from.querySelectorAll(query)];
  root.classList.add("js");

  // light and dark: the reader's choice wins over the system's; in a frame without storage it lasts as long as the page
  const kept = { get: () => { try { return localStorage.getItem("siloflow-theme"); } catch { return null; } },
                 set: (value) => { try { localStorage.setItem("siloflow-theme", value); } catch { /* no storage here */ } } };
  const theme = document.getElementById("theme");
  const dark = () => root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  if (["light", "dark"].includes(kept.get())) root.dataset.theme = kept.get();
  theme.hidden = false;
  theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; kept.set(root.dataset.theme); });

  // tables: a click on a heading sorts, a second one turns the order round
  const keyOf = (row, at) => { const cell = row.cells[at]; return cell.dataset.k ?? cell.textContent.trim(); };
  const compare = (a, b) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const difference = Number(a) - Number(b);
    return Number.isNaN(difference) ? a.localeCompare(b) : difference;
  };
  for (const table of all("table.sortable")) {
    all("thead th", table).forEach((head, at) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        const body = table.tBodies[0];
        const groups = [];  // a row that belongs to the one above stays beneath it
        for (const row of body.rows) if (row.classList.contains("beneath") && groups.length) groups.at(-1).push(row); else groups.push([row]);
        groups.sort(([a], [b]) => (up ? 1 : -1) * compare(keyOf(a, at), keyOf(b, at)));
        body.replaceChildren(...groups.flat());
      });
    });
  }

  // legends: what is pointed at stays, the rest of the figure fades
  for (const figure of all("figure")) {
    const light = (name) => {
      figure.classList.toggle("dimming", name !== null);
      all("[data-s]", figure).forEach((part) => part.classList.toggle("lit", part.dataset.s === name));
    };
    for (const item of all(".legend li", figure)) {
      item.addEventListener("pointerenter", () => light(item.dataset.s));
      item.addEventListener("pointerleave", () => light(null));
      item.addEventListener("focus", () => light(item.dataset.s));
      item.addEventListener("blur", () => light(null));
    }
  }

  for (const button of all("button.copy")) {
    button.addEventListener("click", async () => {
      const text = document.getElementById(button.dataset.copy).textContent;
      const before = button.textContent;
      try {
        await navigator.clipboard.writeText(text);
      } catch {  // a frame without the permission: the old way
        const area = Object.assign(document.createElement("textarea"), { value: text });
        document.body.append(area);
        area.select();
        document.execCommand("copy");
        area.remove();
      }
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = before; }, 1500);
    });
  }

  const links = new Map(all("nav a").map((link) => [link.hash.slice(1), link]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) {
      links.forEach((link, name) => link.classList.toggle("now", name === entry.target.id));
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  all("section[id]").forEach((section) => seen.observe(section));
})();
