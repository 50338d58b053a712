"use strict";
(() => {
  const embedded = JSON.parse(document.getElementById("embedded").textContent);
  const press = (button) => button.parentElement.querySelectorAll("button").forEach((other) =>
    other.setAttribute("aria-pressed", String(other === button)));
  document.querySelectorAll("[data-figure] button").forEach((button) => button.addEventListener("click", () => {
    press(button);
    document.querySelectorAll(`#chart-${button.parentElement.dataset.figure} > [data-panel]`).forEach((panel) => {
      panel.hidden = panel.dataset.panel !== button.dataset.choice;
    });
  }));

  // What is under the mouse, or was tapped.
  const tip = document.getElementById("tip");
  const showTip = (event) => {
    const target = event.target.closest?.("[data-tip]");
    tip.hidden = !target;
    if (!target) return;
    tip.textContent = target.dataset.tip;
    const width = document.documentElement.clientWidth, box = tip.getBoundingClientRect();
    const left = Math.min(event.clientX + 14, width - box.width - 8);
    const above = event.clientY + box.height + 24 > innerHeight;
    tip.style.left = `${Math.max(left, 8) + scrollX}px`;
    tip.style.top = `${(above ? event.clientY - box.height - 12 : event.clientY + 16) + scrollY}px`;
  };
  document.addEventListener("pointermove", showTip);
  document.addEventListener("pointerdown", showTip);

  const slider = document.getElementById("tau");
  const percent = (value) => {
    if (value === null) return "–";
    const size = 100 * Math.abs(value);
    return `${(100 * value).toFixed(size === 0 || size >= 0.995 ? 1 : size >= 0.00995 ? 2 : 3)}%`;
  };
  const turn = () => {
    const { taus, models } = embedded.dial, step = Number(slider.value), tau = String(taus[step]);
    document.getElementById("tau-value").textContent = tau;
    slider.setAttribute("aria-valuetext", `τ = ${tau}`);
    document.querySelectorAll("#dial-table tbody tr").forEach((row) => {
      const values = models[row.querySelector("input").value];
      row.querySelectorAll("[data-slice-of]").forEach((cell) => { cell.textContent = percent(values[cell.dataset.sliceOf][step]); });
    });
    document.querySelectorAll(".ring").forEach((ring) => {
      const [x, y] = JSON.parse(ring.dataset.places)[step];
      ring.setAttribute("cx", x);
      ring.setAttribute("cy", y);
    });
    document.getElementById("dial-scheme").textContent = document.querySelector("#dial-table input:checked").dataset.quoted;
    document.getElementById("dial-tau").textContent = tau;
  };
  slider?.addEventListener("input", turn);
  document.querySelectorAll("#dial-table input").forEach((model) => model.addEventListener("change", turn));
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
