"use strict";
const charts = JSON.parse(document.getElementById("charts").textContent);
const names = ["first", "second", "third", "fourth", "bad", "faint", "text"];

function theme() {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue("--" + name).trim();
  return {
    ...Object.fromEntries(names.map((name) => [name, colour(name)])),
    line: colour("line"), paper: colour("paper"),
    switch: [[0, colour("bad")], [1, colour("line")]],
    violation: [[0, colour("first")], [0.5, colour("paper")], [1, colour("bad")]],
  };
}

// Colours are written as names; put in those of the theme, wherever they stand.
function coloured(value, key, colours) {
  if (Array.isArray(value)) return value.map((one) => coloured(one, key, colours));
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, one]) => [name, coloured(one, name, colours)]));
  }
  return (key === "color" || key === "colorscale") && value in colours ? colours[value] : value;
}

function draw(place) {
  const chart = charts[place.dataset.chart];
  if (!chart) return;
  const colours = theme();
  const { data, layout } = coloured(chart, "", colours);
  const narrow = place.clientWidth < 500;
  const base = {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: colours.text, size: narrow ? 11 : 13 },
    margin: { l: narrow ? 52 : 70, r: 16, t: 16, b: 60 }, hoverlabel: { bgcolor: colours.paper, font: { color: colours.text } },
  };
  for (const name of Object.keys(layout).concat("xaxis", "yaxis")) {
    if (/^[xy]axis/.test(name)) layout[name] = { gridcolor: colours.line, zerolinecolor: colours.line, automargin: true, ...layout[name] };
  }
  Plotly.react(place, data, { ...base, ...layout }, { responsive: true, displaylogo: false });
}

// A chart in a folded part has no width until it is opened.
const places = [...document.querySelectorAll(".chart")];
const drawAll = () => places.filter((place) => place.clientWidth > 0).forEach(draw);
drawAll();
document.querySelectorAll("details.run").forEach((part) => part.addEventListener("toggle", drawAll));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);

document.querySelectorAll("table.sortable th button").forEach((button) => {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    [...head.parentNode.children].forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.children[column].textContent.replaceAll(",", "");
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
      return Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
    };
    [...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))).forEach((row) => body.append(row));
  });
});
