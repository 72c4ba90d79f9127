"use strict";

// Sort by a click on a heading.
document.querySelectorAll("table.sortable th button").forEach((button) => {
  button.addEventListener("click", () => {
    const head = button.closest("th"), table = button.closest("table"), body = table.tBodies[0];
    const column = [...head.parentNode.children].indexOf(head);
    const down = head.getAttribute("aria-sort") === "ascending";
    [...head.parentNode.children].forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    const key = (row) => row.children[column].firstChild.textContent.replaceAll(",", "");
    const compare = (a, b) => {
      const [x, y] = [key(a), key(b)], [p, q] = [parseFloat(x), parseFloat(y)];
      return Number.isNaN(p) || Number.isNaN(q) ? x.localeCompare(y) : p - q;
    };
    [...body.rows].sort((a, b) => (down ? compare(b, a) : compare(a, b))).forEach((row) => body.append(row));
  });
});

// With very many clients, the table shows the worst, or those that match the search.
const every = JSON.parse(document.getElementById("every").textContent);
const verdicts = ["violates", "undecided", "meets"], most = 20;
document.querySelectorAll("input[data-search]").forEach((input) => {
  const { rows, marks } = every[input.dataset.search];
  const body = document.querySelector(`table[data-clients="${input.dataset.search}"]`).tBodies[0];
  const message = document.querySelector(`[data-found="${input.dataset.search}"]`);
  const worst = [...body.rows];
  const cell = (text) => {
    const [value, small] = text.split("\n"), made = document.createElement("td");
    made.append(value);
    if (small) made.append(Object.assign(document.createElement("small"), { textContent: small }));
    return made;
  };
  input.addEventListener("input", () => {
    const wanted = input.value.trim().toLowerCase();
    if (!wanted) {
      body.replaceChildren(...worst);
      message.textContent = "";
      return;
    }
    const found = rows.flatMap((row, i) => (row[0].toLowerCase().includes(wanted) ? [i] : []));
    body.replaceChildren(...found.slice(0, most).map((i) => {
      const row = document.createElement("tr");
      row.className = verdicts[marks[i]];
      row.append(...rows[i].map(cell));
      return row;
    }));
    const first = found.length > most ? `; the first ${most} of them, the worst first` : "";
    message.textContent = `${found.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} found${first}.`;
  });
});
