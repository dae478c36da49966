"use strict";
// Instants are UTC in the page; the reader's own zone is shown.
for (const time of document.querySelectorAll("time[datetime]")) {
  const at = new Date(time.dateTime);
  time.title = time.textContent;
  time.textContent = at.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short" });
}

// Thousands of tiles are one stop of the Tab key in each group; arrow keys move between them.
for (const tiles of document.querySelectorAll(".tiles")) {
  const links = [...tiles.querySelectorAll("a")];
  links.slice(1).forEach((link) => { link.tabIndex = -1; });
  tiles.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    const next = step && links[links.indexOf(document.activeElement) + step];
    if (next) {
      event.preventDefault();
      document.activeElement.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
    }
  });
}

// A chart draws the table in its figure, so both say the same.
function tableOf(figure) {
  const table = figure.querySelector("details table");
  const [title, ...names] = [...table.querySelectorAll("thead th:not([data-aside])")].map((cell) => cell.textContent.trim());
  const rows = [...table.querySelectorAll("tbody tr")].map((row) =>
    [...row.querySelectorAll("[data-v]")].map((cell) => (cell.dataset.v === "" ? null : Number(cell.dataset.v))));
  const columns = [0, ...names.map((_, index) => index + 1)].map((index) => rows.map((row) => row[index]));
  return { title, names, columns };
}

function stackedOn(columns) {
  const sums = columns[0].map(() => 0);
  return columns.map((column) => column.map((value, index) => (sums[index] += value || 0)));
}

// What an axis says of an instant: its day, or its time where the axis is divided more finely.
function instant(at, days, step) {
  const when = new Date(at * 1000);
  const timeZone = days ? "UTC" : undefined;
  const midnight = when.getHours() === 0 && when.getMinutes() === 0;
  if (step >= 86400 || (step && midnight)) return when.toLocaleDateString(undefined, { month: "short", day: "numeric", timeZone });
  return step ? when.toLocaleTimeString(undefined, { timeStyle: "short", timeZone }) : when.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "short", timeZone });
}

function draw(figure) {
  const plot = figure.querySelector(".plot");
  const { title, names, columns } = tableOf(figure);
  const styles = getComputedStyle(document.documentElement);
  const colour = (name) => styles.getPropertyValue(name).trim();
  const [x, ...values] = columns;
  const bars = Boolean(figure.dataset.bars);
  const days = Boolean(figure.dataset.days);
  const stacked = figure.dataset.chart === "stacked";
  const shown = stacked ? stackedOn(values) : values;
  // The highest sums are drawn first, so that each part stays visible below the next.
  const order = stacked ? names.map((_, index) => index).reverse() : names.map((_, index) => index);
  const format = (value) => (value == null ? "-" : `${value.toLocaleString(undefined, { maximumFractionDigits: 2 })} ${figure.dataset.unit}`);
  const axis = { stroke: colour("--quiet"), grid: { stroke: colour("--soft"), width: 1 }, ticks: { stroke: colour("--line"), width: 1 } };
  plot.replaceChildren();
  new uPlot({
    width: plot.clientWidth,
    height: Math.min(420, Math.max(260, plot.clientWidth / 3)),
    // Days are UTC; other instants are in the reader's zone.
    tzDate: (at) => (days ? uPlot.tzDate(new Date(at * 1000), "Etc/UTC") : new Date(at * 1000)),
    scales: { x: { range: (_, low, high) => (bars ? [low - 43200, high + 43200] : [low, high]) }, y: { range: (_, low, high) => [Math.min(0, low || 0), (high || 1) * 1.05] } },
    axes: [{ ...axis, ...(days ? { incrs: [1, 2, 7, 14, 28].map((count) => count * 86400) } : {}), values: (_, splits, __, ___, step) => splits.map((at) => instant(at, days, step)) }, { ...axis, size: 64, label: figure.dataset.unit, labelSize: 20 }],
    series: [{ label: title, value: (_, at) => (at == null ? "-" : instant(at, days, days ? 86400 : 0)) }, ...order.map((index) => ({
      label: names[index],
      stroke: colour(`--c${(index % 8) + 1}`),
      fill: stacked ? colour(`--c${(index % 8) + 1}`) : undefined,
      width: stacked ? 1 : 2,
      dash: stacked || index < 4 ? undefined : [6, 3],
      paths: bars ? uPlot.paths.bars({ size: [0.8, 60] }) : undefined,
      points: { show: false },
      value: (_, __, ___, at) => format(at == null ? null : values[index][at]),
    }))],
  }, [x, ...order.map((index) => shown[index])], plot);
}

const figures = [...document.querySelectorAll("figure[data-chart]")];
const redraw = () => figures.forEach(draw);
redraw();
addEventListener("resize", () => { clearTimeout(redraw.timer); redraw.timer = setTimeout(redraw, 150); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
