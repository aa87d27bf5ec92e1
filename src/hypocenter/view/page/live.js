// Asks once a second what has changed, and puts new parts in the place of old ones. Plain ES, no build step.
// @ts-check
"use strict";
(() => {
  const ASK_MS = 1000, HIDDEN_MS = 5000, SLOWEST_MS = 15000;
  const body = document.body, told = /** @type {HTMLElement} */ (document.getElementById("live"));
  const source = body.dataset.source || "";
  let turned = body.dataset.turn || "", tag = "", failures = 0, isOver = false;

  /** @param {string} name @returns {HTMLElement | null} */
  const sectionOf = (name) => document.querySelector(`[data-part="${name}"]`);

  /** Fetch one part and show it; what the reader has opened, or stands on, stays. @param {string} name @param {string} want */
  async function renew(name, want) {
    const section = sectionOf(name);
    if (!section || section.dataset.tag === want) return;
    const answer = await fetch(`${source}/part/${name}`, { credentials: "same-origin" });
    if (!answer.ok) throw new Error(String(answer.status));
    const fresh = document.createElement("template");
    fresh.innerHTML = await answer.text();
    const open = [...section.querySelectorAll("details")].map((each) => each.open);
    const chosen = [...section.querySelectorAll("select")].map((each) => each.value);
    const scrolled = [...section.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    const focusable = "a, button, select, summary, [tabindex]", at = [...section.querySelectorAll(focusable)].indexOf(/** @type {Element} */ (document.activeElement));
    section.replaceChildren(fresh.content);
    section.querySelectorAll("details").forEach((each, i) => { if (i in open) each.open = open[i]; });
    section.querySelectorAll("select").forEach((each, i) => { if (chosen[i] && [...each.options].some((o) => o.value === chosen[i])) each.value = chosen[i]; });
    section.querySelectorAll(".scroll").forEach((each, i) => { each.scrollLeft = scrolled[i] || 0; });
    if (at >= 0) /** @type {HTMLElement | undefined} */ (section.querySelectorAll(focusable)[at])?.focus({ preventScroll: true });
    section.dataset.tag = answer.headers.get("ETag")?.replaceAll('"', "") || want;
  }

  /** Something broke since the page was opened: go there. @param {string} turn */
  function turnTo(turn) {
    if (!turn || turn === turned) return;
    turned = turn;
    const finding = document.getElementById("finding");
    finding?.scrollIntoView({ block: "start", behavior: matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth" });
    finding?.focus({ preventScroll: true });
    history.replaceState(null, "", "#finding");
  }

  async function ask() {
    const answer = await fetch(`${source}/state`, { headers: tag ? { "If-None-Match": tag } : {}, credentials: "same-origin", cache: "no-store" });
    if (answer.status === 304) return;
    if (!answer.ok) throw new Error(answer.status === 403 ? "the token is no longer valid" : `it answers ${answer.status}`);
    const state = await answer.json();
    for (const name of Object.keys(state.parts)) await renew(name, state.parts[name]);
    tag = answer.headers.get("ETag") || "";
    document.title = state.title;
    isOver = state.is_over;
    turnTo(state.turn);
  }

  async function loop() {
    try {
      await ask();
      failures = 0;
      told.textContent = isOver ? "ended" : "live";
      body.classList.remove("lost");
    } catch (error) {
      failures += 1;
      told.textContent = failures > 1 ? "connection lost, trying again" : told.textContent;
      body.classList.toggle("lost", failures > 1);
    }
    const rest = isOver || document.hidden ? HIDDEN_MS : ASK_MS;
    setTimeout(loop, Math.min(SLOWEST_MS, rest * 2 ** Math.min(failures, 4)));
  }
  if (source) loop();
})();
