// A click on a head sorts its table by that column: numbers by their size, all else by the alphabet; a second click turns it round.
for (const head of document.querySelectorAll("thead th")) {
  head.addEventListener("click", () => {
    const column = head.cellIndex, body = head.closest("table").tBodies[0];
    const down = head.getAttribute("aria-sort") === "ascending";
    const key = (row) => row.cells[column]?.querySelector(".value")?.textContent.trim() ?? "";
    const compare = (a, b) => (parseFloat(a) - parseFloat(b)) || a.localeCompare(b);
    const rows = [...body.rows].sort((a, b) => (down ? -1 : 1) * compare(key(a), key(b)));
    for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
    head.setAttribute("aria-sort", down ? "descending" : "ascending");
    body.append(...rows);
  });
}
