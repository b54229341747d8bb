// Tables inside an element of class "tt-sortable" are sorted by a click on (or Enter in) a column's heading.
for (const table of document.querySelectorAll(".tt-sortable table")) {
  table.querySelectorAll("th").forEach((heading, column) => {
    heading.dataset.sort = "";
    heading.tabIndex = 0;
    heading.setAttribute("role", "columnheader");
    const sort = () => {
      const up = heading.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((other) => other.removeAttribute("aria-sort"));
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const value = (row) => row.cells[column].textContent.trim().replace(/\u2212/g, "-");
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const order = value(a).localeCompare(value(b), "en", { numeric: true });
        return up ? order : -order;
      });
      table.tBodies[0].append(...rows);
    };
    heading.addEventListener("click", sort);
    heading.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); sort(); }
    });
  });
}
