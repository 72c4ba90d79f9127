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
