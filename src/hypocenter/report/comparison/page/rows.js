// All rows as a table: filtered by state, phase and text, in execution order or the worst first.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, useMemo, useState } = window.htmPreact, diff = window.hypocenterDiff, { CLASSES, GLYPHS, NAMES, UNMATCHED, floorOf, power, times } = diff;
  const PAGE = 100; // rows drawn at once

  /** @param {any} data @param {any} view @param {any} want @returns {{at: number, lone: any}[]} rows of the view, then spots without counterpart */
  function chosen(data, view, want) {
    const text = want.text.trim().toLowerCase(), found = [];
    view.rows.forEach((/** @type {any} */ row, /** @type {number} */ at) => {
      const pair = data.pairs[row.pair];
      if (!want.states.has(row.code) || (want.phase && pair.phase !== want.phase)) return;
      if (text && !`${pair.left} ${pair.right}`.toLowerCase().includes(text)) return;
      found.push({ at, lone: null });
    });
    if (want.sort === "times") found.sort((a, b) => rank(view.rows[b.at]) - rank(view.rows[a.at]) || view.rows[b.at].times - view.rows[a.at].times || a.at - b.at);
    if (want.isDown) found.reverse();
    const lone = !want.states.has(UNMATCHED) ? [] : data.lone.filter((/** @type {any} */ l) => (!want.phase || l.phase === want.phase) && (!text || l.name.toLowerCase().includes(text)));
    return [...found, ...lone.map((/** @type {any} */ one) => ({ at: -1, lone: one }))];
  }

  /** @param {any} row */
  const rank = (row) => (row.code === 3 ? 1 : 0);

  /** @param {{data: any, view: any, row: number, pick: (row: number) => void, choose: (line: number) => void}} props */
  function Rows({ data, view, row, pick, choose }) {
    const counts = useMemo(() => view.rows.reduce((/** @type {number[]} */ n, /** @type {any} */ r) => { n[r.code] += 1; return n; }, [0, 0, 0, 0, data.nLone]), [view]);
    const [want, setWant] = useState({ states: new Set(counts[2] + counts[3] ? [1, 2, 3, 4] : [0, 1, 2, 3, 4]), phase: "", text: "", sort: "order", isDown: false }), [most, setMost] = useState(PAGE);
    const set = (/** @type {object} */ change) => { setWant({ ...want, ...change }); setMost(PAGE); };
    const found = useMemo(() => chosen(data, view, want), [view, want]), shown = found.slice(0, most);
    const phases = useMemo(() => [...new Set([...view.rows.map((/** @type {any} */ r) => data.pairs[r.pair].phase), ...data.lone.map((/** @type {any} */ l) => l.phase)])], [view]);
    const flip = (/** @type {number} */ code) => { const states = new Set(want.states); if (!states.delete(code)) states.add(code); set({ states }); };
    const sort = (/** @type {string} */ name) => set(want.sort === name ? { isDown: !want.isDown } : { sort: name, isDown: false });
    const head = (/** @type {string} */ name, /** @type {string} */ words, /** @type {string} */ kind) => html`<th scope="col" class=${kind} aria-sort=${want.sort !== name ? "none" : (name === "times") !== want.isDown ? "descending" : "ascending"}><button onClick=${() => sort(name)}>${words}${want.sort === name ? ((name === "times") !== want.isDown ? " ↓" : " ↑") : ""}</button></th>`;
    return html`<section id="rows"><h2>Rows</h2>
      <div class="filters" role="group" aria-label="which rows">
        ${[3, 2, 1, 0, UNMATCHED].map((code) => html`<button class=${`filter ${CLASSES[code]}`} aria-pressed=${want.states.has(code)} disabled=${!counts[code]} onClick=${() => flip(code)}><span class="glyph">${GLYPHS[code]}</span> ${NAMES[code]} <b>${counts[code].toLocaleString("en")}</b></button>`)}
        <label>phase <select value=${want.phase} onChange=${(/** @type {any} */ e) => set({ phase: e.target.value })}><option value="">all</option>${phases.map((name) => html`<option value=${name}>${name}</option>`)}</select></label>
        <input type="search" placeholder="part of a site's name" aria-label="part of a site's name" value=${want.text} onInput=${(/** @type {any} */ e) => set({ text: e.target.value })} />
        <span class="mute small" role="status">${found.length.toLocaleString("en")} shown${counts[0] && !want.states.has(0) ? `, ${counts[0].toLocaleString("en")} equal ones are not` : ""}</span></div>
      <div class="scroll tall"><table class="plain rows"><thead><tr>${head("order", "order", "num")}<th scope="col">verdict</th><th scope="col">step</th><th scope="col">phase</th><th scope="col">site</th><th scope="col" class="num">error</th><th scope="col" class="num">floor</th>${head("times", "error / floor", "num")}<th scope="col">paired by</th></tr></thead>
        <tbody>${shown.map(({ at, lone }) => (lone ? html`<tr key=${`lone-${lone.side}-${lone.phase}-${lone.name}`} class="unmatched" tabIndex="0" onClick=${() => choose(lone.line)} onKeyDown=${(/** @type {KeyboardEvent} */ e) => { if (e.key === "Enter") choose(lone.line); }}>
            <td class="num mute">–</td><td class="tight"><${diff.Mark} code=${UNMATCHED} /> unmatched</td><td></td><td class="tight">${lone.phase}</td><td class="mono site">${lone.name}</td><td colSpan="4" class="mute">only in the ${lone.side ? "candidate" : "baseline"}</td></tr>`
          : html`<${One} key=${at} data=${data} view=${view} at=${at} isChosen=${at === row} pick=${pick} />`))}</tbody></table></div>
      ${found.length > most && html`<p><button class="more" onClick=${() => setMost(most + 4 * PAGE)}>show ${Math.min(4 * PAGE, found.length - most).toLocaleString("en")} more</button> <span class="mute small">${(found.length - most).toLocaleString("en")} rows not shown</span></p>`}
      ${data.nLone > data.lone.length && html`<p class="mute small">${(data.nLone - data.lone.length).toLocaleString("en")} more spots without counterpart are in --json</p>`}
    </section>`;
  }

  /** @param {{data: any, view: any, at: number, isChosen: boolean, pick: (row: number) => void}} props */
  function One({ data, view, at, isChosen, pick }) {
    const row = view.rows[at], pair = data.pairs[row.pair];
    return html`<tr class=${`${isChosen ? "chosen" : ""} ${at === view.first ? "first" : ""}`} tabIndex="0" aria-selected=${isChosen} onClick=${() => pick(at)} onKeyDown=${(/** @type {KeyboardEvent} */ e) => { if (e.key === "Enter") pick(at); }}>
      <td class="num mute">${at}</td><td class="tight"><${diff.Mark} code=${row.code} /> ${NAMES[row.code]}</td><td class="mono tight">${row.step}</td><td class="tight">${pair.phase}</td>
      <td class="mono site">${at === view.first ? "▶ " : ""}${pair.left}${pair.right && html`<div class="mute">${pair.right}</div>`}</td>
      <td class="num mono">${power(row.error)}</td><td class="num mono mute">${floorOf(row)}</td><td class="num mono">${times(row.times)}</td><td class="tight">${pair.by}${pair.layout && html` <span class="mute">${pair.layout}</span>`}</td></tr>`;
  }

  Object.assign(diff, { Rows });
})();
