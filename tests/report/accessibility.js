// What WCAG 2.1 AA asks of a page and a program can tell: contrast, names, headings, tables, focus, width. A list of complaints.
() => {
  const complaints = [];
  const seen = (e) => { const s = getComputedStyle(e), b = e.getBoundingClientRect(); return s.visibility !== "hidden" && s.display !== "none" && b.width > 0 && b.height > 0; };
  const told = (e) => `${e.tagName.toLowerCase()}${e.className && e.className.baseVal === undefined ? "." + String(e.className).trim().replace(/ +/g, ".") : ""} "${(e.textContent || "").trim().slice(0, 40)}"`;
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1); const d = canvas.getImageData(0, 0, 1, 1).data; return [d[0], d[1], d[2], d[3] / 255]; };
  const over = (top, below) => top.slice(0, 3).map((v, i) => v * top[3] + below[i] * (1 - top[3]));
  const background = (e) => {
    const layers = [];
    for (let at = e; at; at = at.parentElement) { const c = rgba(getComputedStyle(at).backgroundColor); if (c[3] > 0) layers.push(c); if (c[3] === 1) break; }
    let colour = matchMedia("(prefers-color-scheme: dark)").matches ? [18, 18, 18] : [255, 255, 255];
    for (const layer of layers.reverse()) colour = over(layer, colour);
    return colour;
  };
  const light = (c) => c.slice(0, 3).map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)).reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const contrast = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const done = new Set();
  while (walker.nextNode()) {
    const e = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || done.has(e) || !seen(e) || e.closest("script, style, option, [hidden], [aria-hidden=true]")) continue;
    done.add(e);
    const s = getComputedStyle(e), below = background(e), size = parseFloat(s.fontSize);
    const text = over(rgba(e.closest("svg") ? s.fill : s.color), below);
    const need = size >= 24 || (size >= 18.66 && Number(s.fontWeight) >= 700) ? 3 : 4.5;
    const ratio = contrast(text, below);
    if (ratio < need) complaints.push(`contrast ${ratio.toFixed(2)} of ${told(e)}`);
  }
  const named = (e) => (e.getAttribute("aria-label") || (e.labels && [...e.labels].map((l) => l.textContent).join("")) || e.textContent || e.getAttribute("title") || "").trim();
  for (const e of document.querySelectorAll("input, select, button, a[href], [role=slider], [role=img], canvas[tabindex]")) if (seen(e) && !named(e)) complaints.push(`no name: ${told(e)}`);
  if (!document.documentElement.lang) complaints.push("no language");
  if (!document.title.trim()) complaints.push("no title");
  if (document.querySelectorAll("main").length !== 1) complaints.push("not one main");
  let before = 0;
  const headings = [...document.querySelectorAll("h1, h2, h3, h4")].filter(seen);
  if (headings.filter((h) => h.tagName === "H1").length !== 1) complaints.push("not one h1");
  for (const h of headings) { const level = Number(h.tagName[1]); if (level > before + 1) complaints.push(`heading jumps to ${told(h)}`); before = level; }
  for (const th of document.querySelectorAll("th")) if (!th.getAttribute("scope")) complaints.push(`th without scope: ${told(th)}`);
  const ids = [...document.querySelectorAll("[id]")].map((e) => e.id);
  for (const id of new Set(ids)) if (ids.filter((each) => each === id).length > 1) complaints.push(`id twice: ${id}`);
  for (const e of document.querySelectorAll("*")) {
    const s = getComputedStyle(e);
    if (/auto|scroll/.test(s.overflowX + s.overflowY) && (e.scrollWidth > e.clientWidth + 1 || e.scrollHeight > e.clientHeight + 1) && seen(e) && e !== document.documentElement) {
      if (e.tabIndex < 0 && !e.querySelector("[tabindex='0'], input, select, a[href]")) complaints.push(`scrolls, and no key reaches it: ${told(e)}`);
    }
  }
  for (const e of document.querySelectorAll("select, input, button")) if (seen(e) && Math.min(e.getBoundingClientRect().width, e.getBoundingClientRect().height) < 18) complaints.push(`small target: ${told(e)}`);
  if (document.documentElement.scrollWidth > innerWidth) complaints.push(`wider than the window: ${document.documentElement.scrollWidth} > ${innerWidth}`);
  return complaints;
}
