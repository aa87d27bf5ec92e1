// Both module trees, line by line, and beside them what is known of the chosen module.
// @ts-check
"use strict";
(() => {
  // @ts-ignore the scripts before this one define these
  const { html, useEffect, useRef } = window.htmPreact, diff = window.hypocenterDiff, { GLYPHS, NAMES, CLASSES, PARTS, UNMATCHED, floorOf, power, times } = diff;
  const INDENT = 14; // CSS pixels a level
  const FEW = 60; // lines: with more, only what is on the way to a difference is open at first
  const MOST_PORTS = 12; // spots without counterpart named at once

  /** @param {{code: number, title?: string}} props */
  function Mark({ code, title }) {
    if (code < 0) return html`<span class="mark none" title=${title || "nothing compared here"}>·</span>`;
    return html`<span class=${`mark ${CLASSES[code]}`} title=${title || NAMES[code]} role="img" aria-label=${title || NAMES[code]}>${GLYPHS[code]}</span>`;
  }

  /** Lines that are open at first: all of a small tree, else the way to the first difference and its surroundings.
   * @param {any} data @param {number} chosen @returns {Set<number>} */
  function openAtFirst(data, chosen) {
    if (data.lines.length <= FEW) return new Set(data.lines.map((/** @type {any} */ _, /** @type {number} */ at) => at));
    const open = new Set([0, ...data.lines[0].children.slice(0, 4)]);
    for (let at = chosen; at >= 0; at = data.lines[at].parent) open.add(at);
    return open;
  }

  /** The lines to show, from top to bottom. @param {any} data @param {Set<number>} open @returns {number[]} */
  function visible(data, open) {
    const shown = [], todo = [0];
    while (todo.length) {
      const at = /** @type {number} */ (todo.pop());
      shown.push(at);
      if (open.has(at)) todo.push(...[...data.lines[at].children].reverse());
    }
    return shown;
  }

  /** How a line's two sides were found to be one. @param {any} data @param {any} line */
  function linkOf(data, line) {
    const own = line.pairs.map((/** @type {number} */ at) => data.pairs[at]);
    const by = [...new Set(own.map((/** @type {any} */ p) => p.by))], layouts = [...new Set(own.map((/** @type {any} */ p) => p.layout).filter((/** @type {string} */ l) => l && l !== "copies"))];
    const isFused = own.some((/** @type {any} */ p) => p.sizes[0] !== p.sizes[1]);
    return { by, layouts, isFused };
  }

  /** @param {{data: any, line: any}} props */
  function Link({ data, line }) {
    const { by, layouts, isFused } = linkOf(data, line);
    if (!line.pairs.length) return html`<span class="link lone" title="no value of it has a counterpart">${line.sides[0] && line.sides[1] ? "" : "alone"}</span>`;
    const words = [by.filter((name) => name !== "exact").join(", "), isFused ? "fused" : layouts[0] || ""].filter(Boolean).join(" · ");
    return html`<span class=${`link ${words ? "" : "plain"}`} title=${`paired by ${by.join(", ")}${layouts.length ? `; ${layouts.join(", ")}` : ""}`}>${words || "exact"}</span>`;
  }

  /** @param {{cell: any, code: number | null, indent: number, title?: string, children?: any}} props */
  function Side({ cell, code, indent, title, children }) {
    if (!cell) return html`<span class="cell absent" style=${{ paddingLeft: `${indent}px` }}>${children}<span class="nothing">not in this run</span></span>`;
    return html`<span class="cell" style=${{ paddingLeft: `${indent}px` }} title=${`${cell.path || "(model)"}${cell.kind ? ` · ${cell.kind}` : ""}${cell.where ? ` · ${cell.where}` : ""}`}>${children}${code !== null && html`<${Mark} code=${code} title=${title} />`}
      <span class=${`name ${cell.isPart ? "part" : ""}`}><bdi dir="ltr">${cell.isPart ? "↳ " : ""}${cell.shown}</bdi></span>${cell.kind && cell.kind !== cell.shown && html`<span class="kind">${cell.kind}</span>`}</span>`;
  }

  /** What a line says without being opened. @param {any} state @param {boolean} isShut */
  function markOf(state, isShut) {
    const code = isShut && state.own !== UNMATCHED ? Math.max(state.own, state.below) : state.own;
    if (code < 0) return { code: state.below, title: state.below < 0 ? "nothing compared here" : `nothing of its own was compared; below: ${NAMES[state.below]}` };
    const counts = state.nRows ? `; ${state.nDiffer.toLocaleString("en")} of ${state.nRows.toLocaleString("en")} rows here and below differ` : "";
    return { code, title: `${NAMES[code]}${counts}${state.nLone ? `; ${state.nLone} spots without counterpart` : ""}` };
  }

  /** @param {{data: any, view: any, open: Set<number>, setOpen: (open: Set<number>) => void, chosen: number, choose: (line: number) => void, firstLine: number}} props */
  function Trees({ data, view, open, setOpen, chosen, choose, firstLine }) {
    const box = useRef(), shown = visible(data, open);
    useEffect(() => { // what is chosen elsewhere comes into sight here, without moving the page
      const element = box.current.querySelector(`[data-line="${chosen}"]`);
      if (!element) return;
      const top = element.offsetTop, view = box.current;
      if (top < view.scrollTop + 30 || top > view.scrollTop + view.clientHeight - 40) view.scrollTop = top - view.clientHeight / 2;
    }, [chosen, open]);
    const turn = (/** @type {number} */ at) => { const next = new Set(open); if (!next.delete(at)) next.add(at); setOpen(next); };
    const focus = (/** @type {number} */ at) => { choose(at); requestAnimationFrame(() => box.current && box.current.querySelector(`[data-line="${at}"]`)?.focus({ preventScroll: true })); };
    const key = (/** @type {KeyboardEvent} */ event, /** @type {number} */ at) => {
      const line = data.lines[at], place = shown.indexOf(at);
      /** @type {Record<string, () => void>} */
      const keys = {
        ArrowDown: () => { if (place + 1 < shown.length) focus(shown[place + 1]); },
        ArrowUp: () => { if (place > 0) focus(shown[place - 1]); },
        ArrowRight: () => { if (line.children.length && !open.has(at)) turn(at); else if (line.children.length) focus(line.children[0]); },
        ArrowLeft: () => { if (line.children.length && open.has(at)) turn(at); else if (line.parent >= 0) focus(line.parent); },
        Home: () => focus(shown[0]), End: () => focus(shown[shown.length - 1]),
        Enter: () => { if (line.children.length) turn(at); }, " ": () => { if (line.children.length) turn(at); },
      };
      if (!keys[event.key]) return;
      event.preventDefault();
      keys[event.key]();
    };
    const isPlain = data.lines.every((/** @type {any} */ line) => { const { by, layouts } = linkOf(data, line); return !layouts.length && by.every((name) => name === "exact"); });
    const inFocus = shown.includes(chosen) ? chosen : 0;
    return html`<div class=${`trees ${isPlain ? "plain-links" : ""}`} role="treegrid" aria-label="modules of both runs" ref=${box}>
      <div class="tree-head" role="row"><span role="columnheader">baseline</span><span role="columnheader">paired by</span><span role="columnheader">candidate</span>${["par", "fwd", "bwd"].map((name, n) => html`<span role="columnheader" class="part-head" title=${PARTS[n]}>${name}</span>`)}<span role="columnheader" class="num">error</span><span role="columnheader" class="num">floor</span></div>
      ${shown.map((at) => {
        const line = data.lines[at], state = view.states[at], isShut = line.children.length > 0 && !open.has(at), mark = markOf(state, isShut);
        const worst = state.worst >= 0 ? view.rows[state.worst] : null, indent = line.depth * INDENT;
        const twisty = line.children.length ? html`<span class="twisty" aria-hidden="true" onClick=${(/** @type {Event} */ e) => { e.stopPropagation(); turn(at); }}>${isShut ? "▸" : "▾"}</span>` : html`<span class="twisty"></span>`;
        return html`<div key=${at} role="row" data-line=${at} class=${`tree-line ${at === chosen ? "chosen" : ""} ${at === firstLine ? "first" : ""} ${!line.sides[0] || !line.sides[1] ? "one-sided" : ""}`}
          aria-level=${line.depth + 1} aria-selected=${at === chosen} aria-expanded=${line.children.length ? !isShut : undefined} tabIndex=${at === inFocus ? 0 : -1}
          onClick=${() => choose(at)} onDblClick=${() => line.children.length && turn(at)} onKeyDown=${(/** @type {KeyboardEvent} */ e) => key(e, at)}>
          <span role="gridcell"><${Side} cell=${line.sides[0]} code=${mark.code} title=${mark.title} indent=${indent}>${twisty}<//></span>
          <span role="gridcell"><${Link} data=${data} line=${line} /></span>
          <span role="gridcell"><${Side} cell=${line.sides[1]} code=${line.sides[0] ? null : mark.code} title=${mark.title} indent=${indent} /></span>
          ${(isShut ? state.partsBelow : state.parts).map((/** @type {number} */ code, /** @type {number} */ n) => html`<span role="gridcell" class=${`part-mark ${code < 0 ? "none" : CLASSES[code]}`} title=${`${PARTS[n]}: ${code < 0 ? "nothing compared" : NAMES[code]}`}>${code < 0 ? "·" : GLYPHS[code]}</span>`)}
          <span role="gridcell" class="num">${at === firstLine && html`<span class="flag">▶ first</span>`}${worst && state.own > 0 ? power(worst.error) : ""}${state.nLone && isShut || line.nLone[0] + line.nLone[1] ? html`<span class="lone-count" title=${`${state.nLone} spots here and below have no counterpart`}>∅${isShut ? state.nLone : line.nLone[0] + line.nLone[1]}</span>` : ""}</span>
          <span role="gridcell" class="num mute">${worst && state.own > 0 ? floorOf(worst) : ""}</span></div>`;
      })}</div>`;
  }

  /** @param {{name: string, cell: any}} props */
  const Named = ({ name, cell }) => html`<dt>${name}</dt><dd class="mono">${cell ? cell.path || "(model)" : html`<span class="mute">not in this run</span>`}${cell && cell.kind && html`<span class="kind"> ${cell.kind}</span>`}${cell && cell.where && html`<div class="mute">${cell.where}</div>`}</dd>`;

  /** The chosen module: its rows in this view, and for the chosen row all that is known.
   * @param {{data: any, view: any, chosen: number, row: number, pick: (row: number) => void}} props */
  function Inspector({ data, view, chosen, row, pick }) {
    const line = data.lines[chosen], mine = new Set(line.pairs);
    const rows = view.rows.map((/** @type {any} */ _, /** @type {number} */ at) => at).filter((/** @type {number} */ at) => mine.has(view.rows[at].pair));
    return html`<aside class="inspector" aria-label="chosen module"><dl><${Named} name="baseline" cell=${line.sides[0]} /><${Named} name="candidate" cell=${line.sides[1]} /></dl>
      ${rows.length > 0 && html`<div class="own-rows"><table><thead><tr><td></td><th scope="col">what</th><th scope="col" class="num">error</th><th scope="col" class="num">floor</th></tr></thead><tbody>
        ${rows.map((/** @type {number} */ at) => {
          const one = view.rows[at], pair = data.pairs[one.pair];
          return html`<tr key=${at} class=${at === row ? "chosen" : ""} tabIndex="0" onClick=${() => pick(at)} onKeyDown=${(/** @type {KeyboardEvent} */ e) => { if (e.key === "Enter") pick(at); }}>
            <td><${Mark} code=${one.code} /></td><td class="mono">${at === view.first ? "▶ " : ""}${pair.label} <span class="mute">${pair.phase}</span></td><td class="num">${power(one.error)}</td><td class="num mute">${floorOf(one)}</td></tr>`;
        })}</tbody></table></div>`}
      ${rows.includes(row) && html`<${Detail} one=${view.rows[row]} pair=${data.pairs[view.rows[row].pair]} />`}
      ${[0, 1].filter((side) => line.nLone[side]).map((side) => html`<p class="lone-list"><${Mark} code=${UNMATCHED} /> <b>${line.nLone[side]} without counterpart, of the ${side ? "candidate" : "baseline"}</b><br /><span class="mono">${line.lone[side].slice(0, MOST_PORTS).join(", ")}${line.nLone[side] > MOST_PORTS ? `, and ${line.nLone[side] - MOST_PORTS} more` : ""}</span></p>`)}
      ${!rows.length && !line.nLone[0] && !line.nLone[1] && html`<p class="mute">no row of this module is in this view</p>`}</aside>`;
  }

  /** @param {{one: any, pair: any}} props */
  function Detail({ one, pair }) {
    const short = window.hypocenterPage.short, both = (/** @type {string[]} */ two) => (two[0] === two[1] || !two[1] ? two[0] : `${two[0]} | ${two[1]}`);
    const bar = one.low !== null && one.low < one.high && Number.isFinite(one.high) ? `, ${short(one.low)} to ${short(one.high)}` : "";
    const samples = one.source === "repeats" || one.source === "calibration" ? `, ${one.samples} samples` : "";
    /** @type {[string, any][]} */
    const facts = [
      ["row", html`<span class="mono">${pair.left}</span>${pair.right && html`<div class="mono mute">${pair.right}</div>`}`],
      ["at", `step ${one.step}, micro-batch ${one.microbatch}`],
      ["error", one.error === null ? "nothing that both sides hold" : `${one.error < 64 ? `${power(one.error)} (${short(one.error)}${bar})` : `${short(one.error)}${bar}`} by ${one.depth}`],
      ["floor", one.source === "none" ? "none: this has no noise" : `${power(one.floor)} (${short(one.floor)}), ${one.source}${samples}`],
      ["times", one.times ? `${times(one.times)} times the floor` : ""],
      ["cosine", one.cosine === null ? "" : String(Number(one.cosine.toPrecision(6)))],
      ["scale", one.scale === null ? "" : String(Number(one.scale.toPrecision(6)))],
      ["dtype", both(one.dtypes)], ["shape", both(one.shapes)],
      ["paired", `by ${pair.by}${pair.certainty < 1 ? ` (certainty ${pair.certainty})` : ""}${pair.layout ? `, ${pair.layout}` : ""}${pair.why ? `: ${pair.why}` : ""}`],
    ];
    return html`<dl class="detail">${facts.filter(([, text]) => text).map(([name, text]) => html`<dt>${name}</dt><dd>${text}</dd>`)}</dl>`;
  }

  Object.assign(diff, { Inspector, Mark, Trees, openAtFirst });
})();
