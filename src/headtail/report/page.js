"use strict";
(() => {
  const embedded = JSON.parse(document.getElementById("embedded").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)"), phone = matchMedia("(max-width: 640px)");
  const isObject = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
  const merge = (base, over) => Object.fromEntries([...new Set([...Object.keys(base), ...Object.keys(over)])].map((key) =>
    [key, !(key in over) ? base[key] : isObject(base[key]) && isObject(over[key]) ? merge(base[key], over[key]) : over[key]]));

  // Figures name colours by CSS variable, so that one style sheet sets them for text and charts.
  const coloured = (value, key, style) => {
    if (Array.isArray(value)) return value.map((inner) => coloured(inner, key, style));
    if (isObject(value)) return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, coloured(inner, name, style)]));
    return key.endsWith("color") && typeof value === "string" && value.startsWith("--") ? style.getPropertyValue(value).trim() : value;
  };

  const shown = {};
  const draw = (name) => {
    const { data, layout, narrow, byChoice, chosen } = embedded.figures[name], style = getComputedStyle(document.documentElement);
    const traces = data.map((trace) => "meta" in trace && name in shown ? { ...trace, visible: trace.meta === shown[name] } : trace);
    const wide = merge(layout, byChoice[shown[name] ?? chosen] ?? {});
    Plotly.react(`chart-${name}`, coloured(traces, "", style), coloured(phone.matches ? merge(wide, narrow) : wide, "", style),
      { responsive: true, displayModeBar: false });
  };
  const drawAll = () => Object.keys(embedded.figures).forEach(draw);
  drawAll();
  dark.addEventListener("change", drawAll);
  phone.addEventListener("change", drawAll);

  const press = (button) => button.parentElement.querySelectorAll("button").forEach((other) =>
    other.setAttribute("aria-pressed", String(other === button)));
  document.querySelectorAll("[data-figure] button").forEach((button) => button.addEventListener("click", () => {
    press(button);
    shown[button.parentElement.dataset.figure] = button.dataset.choice;
    draw(button.parentElement.dataset.figure);
  }));
  const showSlice = (choice) => document.querySelectorAll("#table-metrics [data-slice]").forEach((cell) => {
    cell.hidden = cell.dataset.slice !== choice;
  });
  document.querySelectorAll("[data-slices] button").forEach((button) => button.addEventListener("click", () => {
    press(button);
    showSlice(button.dataset.choice);
  }));

  const key = (row, column) => row.cells[column].dataset.value;
  const compare = (a, b) => a !== "" && b !== "" && isFinite(a) && isFinite(b) ? a - b : a.localeCompare(b);
  document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
    const heading = button.closest("th"), body = heading.closest("table").tBodies[0], column = heading.cellIndex;
    const first = heading.classList.contains("text") ? "ascending" : "descending";
    const other = first === "ascending" ? "descending" : "ascending";
    const order = heading.getAttribute("aria-sort") === first ? other : first, sign = order === "ascending" ? 1 : -1;
    heading.parentElement.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
    heading.setAttribute("aria-sort", order);
    const rows = [...body.rows].sort((a, b) => {
      const [left, right] = [key(a, column), key(b, column)];
      return left === "" || right === "" ? (left === "") - (right === "") : sign * compare(left, right);
    });
    body.append(...rows);
  }));

  // A text that a spreadsheet would read as a formula gets a leading apostrophe; numbers stay numbers.
  const field = (value) => {
    if (value === null) return "";
    if (typeof value !== "string") return String(value);
    const safe = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
    return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  const csv = (name) => embedded.tables[name].map((row) => row.map(field).join(",") + "\n").join("");
  document.querySelectorAll("[data-csv]").forEach((button) => button.addEventListener("click", () => {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([csv(button.dataset.csv)], { type: "text/csv" }));
    link.download = `headtail-${button.dataset.csv}.csv`;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  }));
})();
