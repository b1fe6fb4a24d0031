// What makes a page hard to use, as a list: text without contrast, controls without a name, pictures without a text.
() => {
  const found = [];
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const known = new Map();

  function rgba(color) {
    if (!known.has(color)) {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = color;
      canvas.fillRect(0, 0, 1, 1);
      known.set(color, [...canvas.getImageData(0, 0, 1, 1).data]);
    }
    return known.get(color);
  }

  /** The relative luminance of WCAG 2.2. */
  function light(color) {
    const [r, g, b] = rgba(color).map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  }

  function behind(element) {
    const handle = element.closest(".handle");
    if (handle) return getComputedStyle(handle.querySelector("rect:not(.hold)")).fill;
    for (let each = element; each; each = each.parentElement) {
      const color = getComputedStyle(each).backgroundColor;
      if (rgba(color)[3] === 255) return color;
    }
  }

  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const { data, parentElement: element } = walker.currentNode;
    if (!data.trim() || element.matches("script, noscript, title, :disabled") || !element.checkVisibility()) continue;
    const style = getComputedStyle(element);
    const ink = light(element instanceof SVGElement ? style.fill : style.color), paper = light(behind(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    const size = parseFloat(style.fontSize);
    const large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5)) found.push(["contrast", data, ratio]); // WCAG 2.2, 1.4.3
  }

  const name = (element) => (element.getAttribute("aria-label") ?? element.closest("label")?.textContent ?? element.textContent).trim();
  const all = (selector) => [...document.querySelectorAll(selector)];
  for (const each of all("button, input, summary, fieldset, [role=slider], [role=region], [tabindex]")) if (!name(each)) found.push(["no name", each.outerHTML]);
  for (const each of all("svg")) if (!each.getAttribute("aria-label")) found.push(["no text", each.outerHTML.slice(0, 200)]);
  for (const each of all("table")) if (!each.querySelector("th[scope=col]")) found.push(["no heads", each.textContent]);
  for (const each of all("th")) if (!each.textContent.trim()) found.push(["an empty head", each.closest("table").textContent]);
  for (const each of all("details[open]")) if (!each.querySelector("tbody tr")) found.push(["no values", each.textContent]);
  const ids = all("[id]").map((each) => each.id);
  if (new Set(ids).size !== ids.length) found.push(["an id twice", ids]);
  const levels = all("h1, h2, h3").map((each) => Number(each.tagName[1]));
  levels.forEach((level, at) => level > (levels[at - 1] ?? 0) + 1 && found.push(["a level skipped", level]));
  return found;
}
