// The page's own code: unpacks the rows, and keeps what is chosen the same in trees, chart and table.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, render, useEffect, useMemo, useState } = window.htmPreact, diff = window.hypocenterDiff, { gunzip } = window.hypocenterPage;

  /** @param {any} data @param {any} view @param {number} row @returns {number} the line of a row */
  const lineOf = (data, view, row) => (row >= 0 ? data.pairs[view.rows[row].pair].lines[0] ?? 0 : 0);

  /** The row to begin with: the first divergence, else the worst. @param {any} view */
  function beginning(view) {
    if (view.first >= 0) return view.first;
    let best = view.rows.length ? 0 : -1;
    view.rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => { const than = view.rows[best]; if (row.code > than.code || (row.code === than.code && row.times > than.times)) best = at; });
    return best;
  }

  /** @param {{data: any}} props */
  function Page({ data }) {
    const [number, setNumber] = useState(0), view = data.views[number];
    const [row, setRow] = useState(() => beginning(view)), [line, setLine] = useState(() => lineOf(data, view, beginning(view)));
    const [open, setOpen] = useState(() => diff.openAtFirst(data, lineOf(data, view, beginning(view))));
    const firstLine = useMemo(() => (view.first >= 0 ? lineOf(data, view, view.first) : -1), [view]);
    const reveal = (/** @type {number} */ at) => { // open the way to a line
      const next = new Set(open);
      for (let over = data.lines[at].parent; over >= 0; over = data.lines[over].parent) next.add(over);
      if (next.size !== open.size) setOpen(next);
    };
    const pick = (/** @type {number} */ at) => { const to = lineOf(data, view, at); setRow(at); setLine(to); reveal(to); };
    const choose = (/** @type {number} */ at) => { setLine(at); reveal(at); if (at === firstLine) setRow(view.first); else if (view.states[at].worst >= 0) setRow(view.states[at].worst); };
    const turn = (/** @type {number} */ next) => { // the same pair in the other view
      const pair = row >= 0 ? view.rows[row].pair : -1, at = data.views[next].rows.findIndex((/** @type {any} */ one) => one.pair === pair);
      setNumber(next); setRow(at >= 0 ? at : beginning(data.views[next]));
    };
    const all = () => setOpen(new Set(data.lines.map((/** @type {any} */ _, /** @type {number} */ at) => at)));
    return html`<div class="view-head"><h2>Modules</h2>
        ${data.views.length > 1 && html`<span class="switch" role="group" aria-label="which rows are shown">${data.views.map((/** @type {any} */ one, /** @type {number} */ n) => html`<button aria-pressed=${n === number} onClick=${() => turn(n)}>${one.name}</button>`)}</span>`}
        <span class="mute small">${view.about}</span>
        <span class="right"><button onClick=${all}>open all</button><button onClick=${() => setOpen(new Set([0]))}>shut all</button>${firstLine >= 0 && html`<button class="to-first" onClick=${() => pick(view.first)}>▶ first divergence</button>`}</span></div>
      <div class=${data.lines.length > 8 ? "split-trees" : "split-trees short"}><${diff.Trees} data=${data} view=${view} open=${open} setOpen=${setOpen} chosen=${line} choose=${choose} firstLine=${firstLine} />
      <${diff.Inspector} data=${data} view=${view} chosen=${line} row=${row} pick=${setRow} /></div>
      <p class="legend">${[3, 2, 1, 0, 4].map((code) => html`<span><${diff.Mark} code=${code} /> ${diff.NAMES[code]}</span>`)}<span>a module shows its worst row; one that is shut the worst below it</span></p>
      <section id="errors"><h2>Error against noise floor, in execution order</h2>${view.rows.length ? html`<${diff.Errors} data=${data} view=${view} row=${row} pick=${pick} /><${diff.ErrorsLegend} data=${data} view=${view} />` : html`<p class="mute">no row was compared</p>`}</section>
      <${diff.Rows} data=${data} view=${view} row=${row} pick=${pick} choose=${choose} />`;
  }

  function App() {
    const [data, setData] = useState(null), [error, setError] = useState("");
    useEffect(() => {
      const { packed } = JSON.parse(/** @type {HTMLElement} */ (document.getElementById("data")).textContent || "{}");
      gunzip(packed).then((/** @type {Uint8Array} */ bytes) => setData(diff.read(JSON.parse(new TextDecoder().decode(bytes))))).catch((/** @type {unknown} */ reason) => setError(String(reason)));
    }, []);
    if (error) return html`<p class="remark">the trees and the chart cannot be drawn: ${error} (a browser of 2023 or later is needed)</p>`;
    return data ? html`<${Page} data=${data} />` : html`<p class="mute">unpacking…</p>`;
  }

  const root = /** @type {HTMLElement} */ (document.getElementById("app"));
  root.replaceChildren();
  render(html`<${App} />`, root);
})();
