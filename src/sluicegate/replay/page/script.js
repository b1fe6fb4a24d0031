"use strict";
// The report of a replay. Text of the log enters the page as text nodes only, never as HTML.

const { result, words } = JSON.parse(document.getElementById("data").textContent);
const { traffic, candidates } = result;
const MINUTE = 60, HOUR = 3600, DAY = 86400;
const STEPS = [MINUTE, 5 * MINUTE, 15 * MINUTE, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, DAY, 2 * DAY, 7 * DAY, 14 * DAY, 30 * DAY, 90 * DAY, 365 * DAY];
const BESIDE = 5; // candidates in one table
const LONGEST = 120; // characters of a text of the log before it is shortened

// ---- elements and figures --------------------------------------------------------------------------------------

const html = (name, given = {}, ...children) => fill(document.createElement(name), given, children);
const svg = (name, given = {}, ...children) => fill(document.createElementNS("http://www.w3.org/2000/svg", name), given, children);

function fill(element, given, children) {
  for (const [name, value] of Object.entries(given)) {
    if (typeof value === "function") element.addEventListener(name, value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

/**
 * Text of the log with what nobody sees shown as Python's `isprintable` and `ascii` do: it cannot reorder or hide what
 * stands around it, and two texts that look the same are the same.
 */
const shown = (text) =>
  text.replace(/(?! )[\p{C}\p{Z}]/gu, (sign) => {
    const code = sign.codePointAt(0).toString(16);
    const [letter, length] = code.length > 4 ? ["U", 8] : code.length > 2 ? ["u", 4] : ["x", 2];
    return `\\${letter}${code.padStart(length, "0")}`;
  });

function shorten(text, longest = LONGEST) {
  const signs = [...shown(text)];
  return signs.length > longest ? `${signs.slice(0, longest - 1).join("")}…` : signs.join("");
}

const logged = (text, longest = LONGEST) =>
  html("bdi", { title: [...text].length > longest ? shown(text) : null }, shorten(text, longest));

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const number = (value) => grouped.format(value);

/** A part in percent, never rounded to nothing or to all: as `words.share` in Python. */
function share(part, whole) {
  const percent = whole ? (100 * part) / whole : 0;
  if (percent === 0 || percent === 100) return `${percent} %`;
  return percent < 0.1 ? "< 0.1 %" : percent > 99.9 ? "> 99.9 %" : `${percent.toFixed(1)} %`;
}

function span(seconds) {
  if (seconds < 10) return `${Number(seconds.toPrecision(2))} s`;
  const left = Math.round(seconds);
  const units = [["d", DAY], ["h", HOUR], ["min", MINUTE], ["s", 1]];
  const at = units.findIndex(([, length]) => left >= length);
  const [unit, length] = units[at];
  const [restUnit, restLength] = units[at + 1] ?? ["", left + 1];
  const rest = Math.floor((left % length) / restLength);
  return `${number(Math.floor(left / length))} ${unit}${rest ? ` ${rest} ${restUnit}` : ""}`;
}

/** A sentence in which no number is parted from its percent sign. */
const sentence = (text) => text.replace(/(\d) %/g, "$1\u00a0%");

const moment = (time) => new Date(time * 1000).toISOString().slice(0, 16).replace("T", " ");
const day = new Intl.DateTimeFormat("en", { timeZone: "UTC", month: "short", day: "numeric" });
const sum = (counts) => counts.reduce((all, each) => all + each, 0);
const largest = (counts) => counts.reduce((most, each) => Math.max(most, each), 0);

// ---- tables ----------------------------------------------------------------------------------------------------

/** A table of rows of cells: text, a number, or an element. Columns of numbers stand right. */
function table(columns, rows, { caption = null, right = [], even = false } = {}) {
  const side = (at) => (right.includes(at) ? "right" : null);
  const cell = (value, at) => html("td", { "data-column": columns[at], class: side(at) }, typeof value === "number" ? number(value) : value);
  return html("table", { class: even ? "stack even" : "stack" },
    caption && html("caption", {}, caption),
    html("thead", {}, html("tr", {}, ...columns.map((column, at) => html("th", { scope: "col", class: side(at) }, column)))),
    html("tbody", {}, ...rows.map((row) => html("tr", {}, ...row.map(cell)))));
}

/** The same values as a table, made when it is opened. */
function values(title, columns, rows) {
  const box = html("div", { class: "tall", tabindex: "0", role: "region", "aria-label": title });
  return html("details", { toggle: () => box.firstChild || box.append(table(columns, rows(), { right: columns.map((_, at) => at).slice(1) })) },
    html("summary", {}, `${title} as a table`), box);
}

// ---- charts ----------------------------------------------------------------------------------------------------

/** A drawing that is made again for each width of the page, and on paper for the width of paper. */
function drawing(label, draw, given = {}) {
  const frame = svg("svg", { role: "img", "aria-label": label, ...given });
  const at = (width) => {
    if (width < 1) return;
    frame.replaceChildren();
    const height = draw(frame, width);
    frame.setAttribute("viewBox", `0 0 ${width} ${height}`);
  };
  let last = 0;
  frame.fit = () => {
    const width = Math.round(frame.clientWidth || frame.parentElement.clientWidth);
    if (width !== last) at((last = width));
  };
  new ResizeObserver(frame.fit).observe(frame);
  return frame;
}

const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low || 1)) * (to - from);
const logarithmic = (low, high, from, to) => {
  const scale = linear(Math.log(low), Math.log(high), from, to);
  return (value) => scale(Math.log(value));
};

/** Round values from nothing to the largest, about `wanted` of them. */
function ticks(most, wanted = 3) {
  const rough = most / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((each) => each * power >= rough * 0.999);
  return Array.from({ length: Math.floor(most / step + 1e-9) + 1 }, (_, at) => at * step);
}

function decades(low, high) {
  const found = [];
  for (let power = 1; power <= high; power *= 10) for (const each of [1, 2, 5]) if (each * power >= low && each * power <= high) found.push(each * power);
  return found;
}

/** The title of an axis on the left, turned, about this height. */
const axisTitle = (text, y) => svg("text", { transform: `translate(11 ${y}) rotate(-90)`, "text-anchor": "middle" }, text);

/** Axes: lines and figures on the left, times below. */
function axes(frame, { x, y, most, width, base, load, title, unit = "" }) {
  frame.append(axisTitle(title, (y(0) + y(most)) / 2));
  for (const tick of ticks(most, 4)) {
    frame.append(svg("path", { class: "axis", d: `M${x.left},${y(tick)}H${width}` }),
      svg("text", { x: x.left - 8, y: y(tick) + 4, "text-anchor": "end" }, `${short.format(tick)}${tick ? unit : ""}`));
  }
  const end = load.start + load.bucket * load.logged.length;
  const step = STEPS.find((each) => ((end - load.start) / each) * 76 <= width - x.left) ?? 365 * DAY;
  for (let time = Math.ceil(load.start / step) * step; time < end; time += step) {
    const place = x(time);
    const text = time % DAY ? new Date(time * 1000).toISOString().slice(11, 16) : day.format(time * 1000);
    frame.append(svg("path", { class: "axis", d: `M${place},${base}v5` }));
    if (place < width - 18) frame.append(svg("text", { x: place, y: base + 19, "text-anchor": place < x.left + 20 ? "start" : "middle" }, text));
  }
}

/** The outline of a row of counts, as steps. */
function area(counts, { x, y, load }) {
  const right = (at) => x(load.start + load.bucket * (at + 1)).toFixed(1);
  const path = counts.map((count, at) => (at && counts[at - 1] === count && at + 1 < counts.length ? "" : `V${y(count).toFixed(1)}`) + `H${right(at)}`);
  return `M${x(load.start)},${y(0)}${path.join("")}V${y(0)}Z`;
}

/** Areas over time, each in front of those before it. */
function overTime(load, label, areas, { title, scale = 1, unit = "", height = 190, peaks = false }) {
  const most = largest(areas.map((each) => largest(each.counts))) * scale || 1;
  return drawing(label, (frame, width) => {
    const base = height - 26, top = 12, left = 62;
    const x = Object.assign(linear(load.start, load.start + load.bucket * load.logged.length, left, width), { left });
    const y = linear(0, most, base, top);
    axes(frame, { x, y, most, width, base, load, title, unit });
    for (const each of areas) frame.append(svg("path", { class: each.class, d: area(each.counts.map((count) => count * scale), { x, y, load }) }));
    if (peaks) for (const each of areas) {
      const peak = largest(each.counts) * scale;
      frame.append(svg("path", { class: "peak", d: `M${left},${y(peak)}H${width}` }));
    }
    return height;
  });
}

function legend(...entries) {
  return html("div", { class: "legend" }, ...entries.map(([kind, text]) => html("span", {}, html("i", { class: kind }), text)));
}

function sparkline(counts, refusals) {
  const size = Math.min(counts.length, 72);
  const pooled = (all) => Array.from({ length: size }, (_, at) => largest(all.slice(Math.floor((at * all.length) / size), Math.floor(((at + 1) * all.length) / size))));
  const all = pooled(counts), out = pooled(refusals);
  const most = largest(all) || 1;
  const bars = (values, kind) =>
    svg("path", { class: kind, d: values.map((value, at) => (value ? `M${2 * at},26v-${Math.max(1, (24 * value) / most).toFixed(1)}h1.6V26z` : "")).join("") });
  return svg("svg", { viewBox: `0 0 ${2 * size} 26`, preserveAspectRatio: "none", role: "img", "aria-label": `most at once: ${number(most)} requests, ${number(largest(refusals))} refused` },
    svg("path", { class: "axis", d: `M0,25.7H${2 * size}` }), bars(all, "passed"), bars(out, "refused"));
}

// ---- the limit that is dragged ---------------------------------------------------------------------------------

/** The distribution of rates, with the limit of one rule as a line that moves over the points of its curve. */
function limit(candidate, curve, text) {
  const rule = candidate.rules.find((each) => each.name === curve.rule);
  const points = [...curve.points].sort((a, b) => a.limit - b.limit);
  const own = nearestPoint(points, curve.limit, (each) => each);
  const rates = result.rates.find((each) => each.period === curve.period && each.key === rule?.key && each.applies_to === rule.applies_to);
  const bins = rates?.bins ?? [];
  const bars = cells(bins);
  const low = edge(Math.max(1, Math.min(points[0].limit, bins[0]?.[0] ?? Infinity)));
  const high = 1.25 * Math.max(points.at(-1).limit, bins.at(-1)?.[0] ?? 0, low + 1);
  let at = own;
  let scale = null;

  const tall = bins.length ? 170 : 0, deep = 120, top = 34, gap = bins.length ? 34 : 0, left = 62;
  const height = top + tall + gap + deep + 44;
  const handle = svg("g", { class: "handle", role: "slider", tabindex: "0", "aria-label": `Limit of ${shorten(curve.rule)} per ${text.period}`,
    "aria-valuemin": points[0].limit, "aria-valuemax": points.at(-1).limit, "aria-orientation": "horizontal", keydown: press });
  const plot = svg("g");
  const frame = drawing("", (_, width) => {
    frame.append(plot, handle);
    draw(width);
    return height;
  }, { class: "plot", role: "group", "aria-label": "Limits", pointerdown: grab, pointermove: drag });

  function draw(width) {
    const x = (scale = logarithmic(low, high, left, width - 12));
    const base = top + tall, floor = base + gap + deep;
    plot.replaceChildren();
    if (bins.length) {
      const most = largest(bars.map(({ count }) => count));
      const y = linear(0, Math.log1p(most), base, top);
      plot.append(axisTitle("identities", (base + top) / 2));
      for (const tick of [0, 1, 10, 100, 1000, 1e4, 1e5, 1e6, 1e7].filter((each) => each <= most)) {
        plot.append(svg("path", { class: "axis", d: `M${left},${y(Math.log1p(tick))}H${width}` }),
          svg("text", { x: left - 8, y: y(Math.log1p(tick)) + 4, "text-anchor": "end" }, short.format(tick)));
      }
      for (const { from, to, count } of bars) {
        const begin = x(edge(from)), end = x(edge(to)), upper = y(Math.log1p(count));
        const most = to - from > 1 ? `${number(from)} to ${number(to - 1)}` : number(from);
        const bar = svg("rect", { class: "soft", x: begin, y: upper, width: Math.max(1, end - begin - 1.5), height: base - upper }, svg("title", {}, `${number(count)} identities: at most ${most} per ${text.period}`));
        bar.dataset.from = from;
        plot.append(bar);
      }
    }
    const most = largest(points.map((point) => point.refused)) || 1;
    const y = linear(0, Math.max(most, 2), floor, base + gap);
    plot.append(axisTitle("requests refused", floor - deep / 2));
    for (const tick of ticks(Math.max(most, 2), 2)) {
      plot.append(svg("path", { class: "axis", d: `M${left},${y(tick)}H${width}` }), svg("text", { x: left - 8, y: y(tick) + 4, "text-anchor": "end" }, short.format(tick)));
    }
    plot.append(svg("path", { class: "steps", d: points.map((point, place) => `${place ? "L" : "M"}${x(point.limit).toFixed(1)},${y(point.refused).toFixed(1)}`).join("") }),
      ...points.map((point) => svg("circle", { class: "dot", r: 2.6, cx: x(point.limit), cy: y(point.refused) })));
    let last = -Infinity;
    for (const tick of decades(low, high)) {
      if (x(tick) - last < 34) continue;
      last = x(tick);
      plot.append(svg("path", { class: "axis", d: `M${last},${floor}v5` }), svg("text", { x: last, y: floor + 19, "text-anchor": "middle" }, short.format(tick)));
    }
    plot.append(svg("text", { x: width, y: floor + 38, "text-anchor": "end" }, `requests per ${text.period} →`));
    handle.replaceChildren(svg("rect", { class: "hold", x: -22, y: 0, width: 44, height: floor }), svg("line", { y1: 22, y2: floor }),
      svg("rect", { x: -30, y: 0, width: 60, height: 24, rx: 12 }), svg("text", { y: 16, "text-anchor": "middle" }));
    move(at);
  }

  function move(to) {
    at = Math.max(0, Math.min(points.length - 1, to));
    const point = points[at];
    if (scale) {
      handle.setAttribute("transform", `translate(${scale(point.limit).toFixed(1)} 0)`);
      handle.querySelector("text").textContent = short.format(point.limit);
      for (const bar of plot.querySelectorAll(".soft")) bar.classList.toggle("over", Number(bar.dataset.from) > point.limit);
    }
    handle.setAttribute("aria-valuenow", point.limit);
    handle.setAttribute("aria-valuetext", `${number(point.limit)} per ${text.period}: ${number(point.refused)} requests of ${number(point.identities)} identities refused, ${number(point.people)} of people`);
    show(point);
  }

  function press(event) {
    const steps = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1, PageUp: 5, PageDown: -5, Home: -points.length, End: points.length };
    if (!(event.key in steps)) return;
    event.preventDefault();
    move(at + steps[event.key]);
  }

  function grab(event) {
    if (event.button) return;
    frame.setPointerCapture(event.pointerId);
    event.preventDefault();
    handle.focus({ preventScroll: true });
    follow(event);
  }

  function drag(event) {
    if (frame.hasPointerCapture(event.pointerId)) follow(event);
  }

  function follow(event) {
    const box = frame.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * frame.viewBox.baseVal.width;
    move(nearestPoint(points, place, scale));
  }

  const big = html("p", { class: "value" });
  const facts = Object.fromEntries(["refused", "identities", "people"].map((name) => [name, html("dd", { "data-fact": name })]));
  const pasted = html("pre", { "aria-label": "The rule" });
  const status = html("p", { class: "status", role: "status" });
  const back = html("button", { type: "button", click: () => move(own) }, `Back to ${number(points[own].limit)}`);
  const written = (form) => text[form][0] + points[at].limit + text[form][1];
  const copy = (form, title) => html("button", { type: "button", "data-copy": form, click: async () => {
    status.textContent = (await copied(written(form))) ? `${title} with ${number(points[at].limit)} copied.` : "The browser allows no copying. Select the text above.";
  } }, `Copy as ${title}`);

  function show(point) {
    big.replaceChildren(number(point.limit), html("small", {}, ` per ${text.period}`));
    const people = candidate.kinds.filter(({ kind }) => kind !== "automated");
    const whole = { refused: candidate.decided, identities: candidate.identities, people: sum(people.map((each) => each.of)) };
    for (const [name, cell] of Object.entries(facts)) {
      cell.replaceChildren(html("b", {}, number(point[name])), html("span", {}, share(point[name], whole[name])));
    }
    if (text.toml) pasted.textContent = written("toml");
    back.disabled = at === own;
    status.textContent = "";
  }

  move(own);
  return html("div", { class: "limit" },
    html("figure", {},
      html("h3", {}, logged(curve.rule), rule ? " · " : null, rule && logged(`${rule.quota} by ${rule.key}${rule.applies_to ? ` on ${rule.applies_to}` : ""}`)),
      legend(...(bins.length ? [["soft", "identities by their most requests"], ["refused", "beyond the limit"]] : []), ["steps", "requests refused at each limit"]),
      frame,
      html("p", { class: "lead" }, inTheGap(points, text.period), points.at(-1).limit > 100 && rule?.algorithm === "sliding-window" ? " Above 100, a sliding window rounds times up to a hundredth of its period: a request waits at most 1 % longer." : ""),
      values("Limits", ["Limit", "Refused requests", "Identities", "People"], () => points.map((point) => [number(point.limit), point.refused, point.identities, point.people])),
      bins.length ? values("Identities", [`Most requests per ${text.period}, from`, "Identities"], () => bins.map(([from, count]) => [number(from), count])) : null),
    html("div", { class: "numbers" }, big,
      html("dl", {}, ...[["refused", "Refused requests"], ["identities", "Identities refused"], ["people", "People refused: not taken for programs"]].map(([name, title]) => html("div", {}, html("dt", {}, title), facts[name]))),
      text.toml && pasted,
      html("div", { class: "buttons" }, text.toml && copy("toml", "TOML"), text.decorator && copy("decorator", "decorator"), back), status));
}

/** Which limit stands in the gap between people and programs. */
function inTheGap(points, period) {
  const free = points.find((point) => !point.people);
  if (!free) return "Each of these limits refuses people: none is in a gap between people and programs.";
  if (!free.refused) return "No limit here refuses programs and no people: there is no gap between them.";
  return `In the gap between people and programs: ${number(free.limit)} per ${period} is the smallest of these limits that refuses no people. It refuses ${number(free.refused)} requests of programs.`;
}

/** Bins put together into cells that are about equally wide on a logarithmic axis. */
function cells(bins) {
  const found = new Map();
  let from = 1, to = 2;
  for (const [value, count] of bins) {
    while (value >= to) [from, to] = [to, Math.max(to + 1, Math.round(to * 1.12))];
    found.set(from, { from, to, count: count + (found.get(from)?.count ?? 0) });
  }
  return [...found.values()];
}

/** Where the cell of a number begins on a logarithmic axis: between it and the number before. */
const edge = (value) => Math.sqrt(Math.max(0.5, (value - 1) * value));

/** The place of the point whose figure is nearest. */
function nearestPoint(points, figure, scale) {
  const distance = (point) => Math.abs(scale(point.limit) - figure);
  return points.reduce((best, point, place) => (distance(point) < distance(points[best]) ? place : best), 0);
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = html("textarea", { "aria-hidden": "true", tabindex: "-1" });
    area.value = text;
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy"); // works where the page is no secure context
    area.remove();
    return done;
  }
}

// ---- sections of one candidate ---------------------------------------------------------------------------------

function section(title, lead, ...children) {
  return html("section", {}, html("h2", {}, title), lead && html("p", { class: "lead" }, lead), ...children);
}

function limits(candidate, texts) {
  const found = candidate.curves.map((curve, at) => ({ curve, text: texts.limits[at] })).filter(({ curve }) => curve.points.length);
  const note = candidate.curves_note || null;
  if (!found.length) return note && section("Another limit", sentence(note));
  return section("Another limit", "Drag the line, or move it with the arrow keys. It stops at limits that were replayed, so each number is exact. All other rules stay as they are.",
    note && html("p", { class: "lead" }, sentence(note)),
    ...found.map(({ curve, text }) => limit(candidate, curve, text)));
}

function rules({ rules: found }) {
  return section("Rules", null, table(["Rule", "Quota", "Key", "On", "Refused", "Identities refused"],
    found.map((each) => [logged(each.name), logged(each.quota), logged(each.key), each.applies_to ? logged(each.applies_to) : "all", each.refused, each.identities]), { right: [4, 5] }));
}

function times(load, counts) {
  return (at) => [moment(load.start + at * load.bucket), ...counts.map((each) => each[at])];
}

function refusals({ load, worst, refused }) {
  if (!load.logged.length) return null;
  if (!refused) return section("Refused over time", "Nothing is refused at any time.");
  const out = load.logged.map((count, at) => count - load.passed[at]);
  const rows = times(load, [load.logged, out]);
  return section("Refused over time", `Requests refused in each ${span(load.bucket)}. Times are in UTC.`,
    html("figure", {}, overTime(load, `Requests refused over time: at most ${number(largest(out))} in ${span(load.bucket)}`, [{ counts: out, class: "refused" }], { title: "refused requests" }),
      values("Refusals", ["From (UTC)", "Requests", "Refused"], () => out.map((_, at) => rows(at)))),
    worst.length ? html("div", { class: "short" }, table(["Begins (UTC)", "Lasts", "Requests", "Refused", "Identities"],
      worst.map((each) => [moment(each.start), span(each.seconds), each.requests, each.refused, each.identities]), { caption: "Worst moments", right: [2, 3, 4] })) : null);
}

function loads({ load }) {
  if (!load.logged.length) return null;
  const rate = (count) => `${Number((count / load.bucket).toPrecision(3))}/s`;
  const rows = times(load, [load.logged, load.passed]);
  const busy = load.busy_logged.length > 0 && largest(load.busy_logged) > 0;
  return section("Load with and without", `The busiest ${span(load.bucket)} has ${rate(largest(load.logged))} without the candidate, and ${rate(largest(load.passed))} with it.`,
    html("figure", {}, legend(["passed", "with the candidate"], ["refused", "what it takes away"]),
      overTime(load, "Requests per second over time, with and without the candidate", [{ counts: load.logged, class: "refused" }, { counts: load.passed, class: "passed" }], { title: "requests", scale: 1 / load.bucket, unit: "/s", peaks: true }),
      values("Load", ["From (UTC)", "Without", "With"], () => load.logged.map((_, at) => rows(at)))),
    busy ? html("figure", {}, html("p", { class: "lead" }, `Requests in progress, on average. The candidate saves ${share(sum(load.busy_logged) - sum(load.busy_passed), sum(load.busy_logged))} of the work.`),
      overTime(load, "Requests in progress over time, with and without the candidate", [{ counts: load.busy_logged, class: "refused" }, { counts: load.busy_passed, class: "passed" }], { title: "in progress", scale: 1 / load.bucket, height: 140 }),
      values("Work", ["From (UTC)", "Seconds of work without", "With"], () => load.busy_logged.map((_, at) => times(load, [load.busy_logged, load.busy_passed])(at)))) : null);
}

function routes({ routes, refused }) {
  const found = routes.filter((each) => each.refused || !refused).sort((a, b) => b.refused - a.refused || b.requests - a.requests);
  if (!found.length) return null;
  return section("Routes", null, table(["Route", "Requests", "Refused", "Share", "Identities", "Identities refused"],
    found.map((each) => [logged(each.route), each.requests, each.refused, share(each.refused, each.requests), each.identities, each.refused_identities]), { right: [1, 2, 3, 4, 5] }));
}

function mostRefused({ most_refused: found }) {
  if (!found.length) return null;
  return section("Most refused", "Blue is what passed over the time of the log, orange what was refused.",
    table(["Identity", "Over time", "Requests", "Refused", "Share", "Blocked for", "First (UTC)", "Last (UTC)"], found.map((each) => [
      html("span", {}, html("span", { class: "identity" }, logged(each.identity)), html("span", { class: "badge" }, words.kinds[each.kind])),
      sparkline(each.counts, each.refusals), each.requests, each.refused, share(each.refused, each.requests), span(each.seconds), moment(each.first), moment(each.last)]), { right: [2, 3, 4, 5] }));
}

function clients(candidate, texts) {
  return section("What clients would have met", null, html("div", { class: "words" },
    html("p", {}, sentence(texts.closed_loop)), html("p", {}, `Refused: ${texts.kinds}.`)));
}

// ---- the page --------------------------------------------------------------------------------------------------

function card(candidate, texts, at, choose) {
  const none = !candidate.refused;
  return html("label", { class: "card" },
    html("input", { type: "radio", name: "candidate", value: at, checked: at === 0, change: () => choose(at) }),
    html("span", { class: "name" }, logged(candidate.name, 60)),
    html("span", { class: none ? "figure none" : "figure" }, number(candidate.refused), html("small", {}, candidate.refused === 1 ? " request refused" : " requests refused")),
    html("span", { class: "says" }, sentence(texts.answer)));
}

function sideBySide() {
  if (candidates.length < 2) return null;
  const tables = [];
  for (let first = 0; first < candidates.length; first += BESIDE) {
    const columns = candidates.slice(first, first + BESIDE);
    const facts = words.candidates.slice(first, first + BESIDE).map((each) => new Map(each.facts));
    const titles = [...new Set(facts.flatMap((each) => [...each.keys()]))];
    const rows = titles.map((title) => [title, ...facts.map((each) => sentence(each.get(title) ?? "–"))]).filter(([, ...cells]) => cells.some((each) => each !== "–"));
    tables.push(table(["Figure", ...columns.map((each) => shorten(each.name, 40))], rows, { right: columns.map((_, at) => at + 1), even: true }));
  }
  return section("Side by side", words.facts, ...tables);
}

function whatWasRead() {
  const { unreadable } = traffic;
  return section("What was read", `${words.read}.`,
    table(["File", "Format"], traffic.files.map(({ name, format }) => [logged(name), logged(format)])),
    words.notes.length ? html("ul", { class: "notes" }, ...words.notes.map((note) => html("li", {}, logged(note, 1000)))) : null,
    unreadable.examples.length ? table(["File", "Line", "Text that could not be read"], unreadable.examples.map(({ file, line, text }) => [logged(file), line, html("code", {}, logged(text))])) : null);
}

function themeButton() {
  const root = document.documentElement;
  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const button = html("button", { type: "button", click: () => { root.dataset.theme = dark() ? "light" : "dark"; label(); } });
  const label = () => { button.textContent = dark() ? "Light" : "Dark"; };
  label();
  return button;
}

function page() {
  const chosen = html("div", { id: "chosen" });
  let shownAt = 0;
  const parts = (at) => {
    const candidate = candidates[at], texts = words.candidates[at];
    return [candidates.length > 1 ? html("h2", { class: "on-paper" }, logged(candidate.name)) : null, texts.rollout ? html("p", { class: "lead" }, sentence(texts.rollout)) : null, rules(candidate), limits(candidate, texts), refusals(candidate), loads(candidate), mostRefused(candidate), routes(candidate), clients(candidate, texts)].filter(Boolean);
  };
  const choose = (at) => chosen.replaceChildren(...parts((shownAt = at)));
  if (candidates.length && traffic.requests) {
    choose(0);
    addEventListener("beforeprint", () => {
      chosen.replaceChildren(...candidates.flatMap((_, at) => parts(at))); // paper has no choice
      for (const each of chosen.querySelectorAll("svg")) each.fit?.();
    });
    addEventListener("afterprint", () => choose(shownAt));
  }
  const read = `${number(traffic.requests)} requests · ${number(traffic.identities)} identities` + (traffic.first === null ? "" : ` · ${moment(traffic.first)} to ${moment(traffic.last)} UTC`);
  document.getElementById("report").append(
    html("header", {},
      html("div", { class: "top" }, html("p", { class: "eyebrow" }, html("b", {}, "sluicegate replay"), html("br"), read), themeButton()),
      html("h1", {}, sentence(words.headline)),
      ...words.said.map((each) => html("p", { class: "lead" }, logged(sentence(each), 1000))),
      ...traffic.warnings.map((each) => html("p", { class: "lead" }, html("b", {}, "Warning: "), logged(each, 1000))),
      candidates.length ? html("fieldset", { class: "cards" }, html("legend", {}, candidates.length > 1 ? "Candidates: choose one to see it below" : "The candidate"),
        ...candidates.map((each, at) => card(each, words.candidates[at], at, choose))) : null),
    ...[sideBySide(), chosen, whatWasRead()].filter(Boolean),
    html("footer", {}, `Made by sluicegate replay in ${words.seconds}. This file needs no network. It shows clients as the log has them, or as digests if it was made with --hide-identities.`));
}

page();
