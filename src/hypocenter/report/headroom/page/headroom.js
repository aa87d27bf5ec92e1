// Another format, another order, a part of a name: what the page shows without this file is the format that was asked about. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  /** @typedef {{name: string, status: string, headline: string, said: string[], zones: [number, number, number] | null, columns: string[], rows: [number | null, number, ...string[]][]}} Format
   * of a row: risk (the lower the worse, null for none), whether it is bad, and its cells */
  /** @type {{axis: {first: number, octaves: number, cells: number}, levels: number, sites: [number, number[]][], formats: Format[]}} */
  const DATA = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}");
  const ZONES = ["zero", "subnormal", "normal", "overflow"], { axis, levels } = DATA; // hypocenter.report.headroom.html
  const byId = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
  let shown = DATA.formats[0];

  /** 0 for nothing, then by powers of ten: hypocenter.report.headroom.sentences.level. @param {number} share */
  const level = (share) => (share <= 0 ? 0 : Math.min(levels - 1, Math.max(1, levels + Math.floor(Math.log10(share)))));
  const cellOf = (/** @type {number} */ exponent) => Math.min(Math.max(Math.floor((exponent - axis.first) / axis.octaves), 0), axis.cells - 1);

  /** What stands in the cells of a site. @param {number} at @returns {string} */
  function drawn(at) {
    const [first, hist] = DATA.sites[at], counts = new Array(axis.cells).fill(0), zones = shown.zones;
    hist.forEach((count, i) => { counts[cellOf(first + i)] += count; });
    const total = counts.reduce((a, b) => a + b, 0) || 1;
    const zone = (/** @type {number} */ i) => (zones ? ZONES[zones.filter((end) => axis.first + axis.octaves * (i + 0.5) >= end).length] : "normal");
    const cells = counts.map((count, i) => (count ? `<path class="${zone(i)} s${level(count / total)}" d="M${i} 0h.9v1h-.9z"/>` : "")).join("");
    const ends = (zones || []).filter((end) => axis.first < end && end < axis.first + axis.octaves * axis.cells).map((end) => `M${cellOf(end)} 0v1`);
    return `${cells}<path class="end" d="${ends.join("")}"/>`;
  }

  /** @param {HTMLElement} row @returns {number} */
  const atOf = (row) => Number(row.dataset.at);
  const riskOf = (/** @type {number} */ at) => shown.rows[at][0] ?? Infinity;
  const rowsOf = (/** @type {Element} */ of) => /** @type {HTMLElement[]} */ ([...of.querySelectorAll("tr[data-at]")]);

  /** Rows in their modules, and modules in their phases, in the order that is asked for. */
  function sort() {
    const key = byId("sort").value === "risk" ? riskOf : (/** @type {number} */ at) => at;
    document.querySelectorAll(".phase").forEach((phase) => {
      const modules = [...phase.querySelectorAll("details")].map((module) => {
        const rows = rowsOf(module).sort((a, b) => key(atOf(a)) - key(atOf(b)) || atOf(a) - atOf(b));
        /** @type {Element} */ (module.querySelector("tbody")).append(...rows);
        return { module, first: Math.min(...rows.map((row) => key(atOf(row)))) };
      });
      phase.append(...modules.sort((a, b) => a.first - b.first).map(({ module }) => module));
    });
  }

  function fill() {
    const card = byId("answer");
    card.className = `card ${shown.status}`;
    card.querySelector("h2").textContent = shown.headline;
    card.querySelector("ul").replaceChildren(...shown.said.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
    byId("verdict").className = `verdict ${shown.status}`;
    byId("verdict").textContent = shown.name;
    const cell = (/** @type {string} */ name, /** @type {string} */ text) => Object.assign(document.createElement(name), { className: "num", textContent: text, ...(name === "th" ? { scope: "col" } : {}) });
    document.querySelectorAll("table.sites").forEach((table) => {
      const head = /** @type {Element} */ (table.querySelector("thead tr"));
      head.replaceChildren(head.children[0], head.children[1], ...shown.columns.map((name) => cell("th", name)));
      rowsOf(table).forEach((row) => {
        const [, isBad, ...cells] = shown.rows[atOf(row)];
        row.className = isBad ? "bad" : "";
        row.replaceChildren(row.children[0], row.children[1], ...cells.map((text) => cell("td", text)));
        /** @type {Element} */ (row.querySelector("svg")).innerHTML = drawn(atOf(row));
      });
    });
    document.querySelectorAll(".phase details").forEach((module) => {
      const rows = rowsOf(module), worst = rows.map((row) => shown.rows[atOf(row)]).reduce((a, b) => ((b[0] ?? Infinity) < (a[0] ?? Infinity) ? b : a));
      const bad = rows.filter((row) => row.className).length, said = shown.zones ? `least headroom ${worst[2]}` : `at most ${worst[4]} to zero`;
      /** @type {Element} */ (module.querySelector("summary .mute")).textContent = `${rows.length} ${rows.length === 1 ? "site" : "sites"}, ${said}${bad ? `, ${bad} overflow${bad === 1 ? "s" : ""}` : ""}`;
      module.classList.toggle("has-bad", bad > 0);
    });
    sort();
  }

  function find() {
    const words = byId("find").value.toLowerCase().split(" ").filter(Boolean);
    document.querySelectorAll(".phase details").forEach((module) => {
      const fits = rowsOf(module).filter((row) => { const is = words.every((/** @type {string} */ word) => (row.children[0].getAttribute("title") || "").toLowerCase().includes(word)); row.hidden = !is; return is; });
      /** @type {HTMLElement} */ (module).hidden = fits.length === 0;
      if (words.length && fits.length) /** @type {HTMLDetailsElement} */ (module).open = true;
    });
  }

  byId("controls").hidden = false;
  document.querySelectorAll('input[name="format"]').forEach((input) => input.addEventListener("change", () => { shown = DATA.formats[Number(/** @type {HTMLInputElement} */ (input).value)]; fill(); }));
  byId("sort").addEventListener("change", sort);
  byId("find").addEventListener("input", find);
  for (const [id, is] of [["open", true], ["shut", false]]) byId(id).addEventListener("click", () => document.querySelectorAll(".phase details").forEach((each) => { /** @type {HTMLDetailsElement} */ (each).open = Boolean(is); }));
})();
