const root = document.documentElement;
const button = document.getElementById("theme");
const preferred = window.matchMedia("(prefers-color-scheme: dark)");
const specs = document.getElementById("specs").textContent;
const drawn = new Map();

const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : preferred.matches);

function chartTheme(dark, narrow) {
  const [ink, soft, line] = dark ? ["#e7eaf0", "#a3adbd", "#2e3542"] : ["#1b212c", "#566073", "#e1e5eb"];
  return {
    background: "transparent",
    font: getComputedStyle(document.body).fontFamily,
    view: { stroke: null },
    axis: { labelColor: soft, titleColor: soft, titleFontWeight: 500, gridColor: line, domainColor: line,
            tickColor: line, labelFontSize: 12, titleFontSize: 12, titlePadding: 8 },
    axisY: { labelLimit: narrow ? 150 : 260 },
    legend: { labelColor: ink, titleColor: soft, labelFontSize: 12, labelLimit: 280 },
  };
}

async function draw(place) {
  const dark = isDark();
  const narrow = place.clientWidth < 480;
  const inOneColumn = (key, value) => (key === "columns" && narrow ? 1 : value);
  const spec = JSON.parse(specs, inOneColumn)[Number(place.dataset.chart)];
  drawn.get(place)?.finalize();
  drawn.set(place, await window.vegaEmbed(place, spec, {
    renderer: "svg", actions: false, ast: true, config: chartTheme(dark, narrow),
    tooltip: { theme: dark ? "dark" : "light" },
  }));
}

async function show() {
  button.setAttribute("aria-pressed", String(isDark()));
  for (const place of document.querySelectorAll("[data-chart]")) await draw(place);
  root.dataset.drawn = isDark() ? "dark" : "light";
}

button.addEventListener("click", () => {
  root.dataset.theme = isDark() ? "light" : "dark";
  show();
});
preferred.addEventListener("change", show);

for (const choice of document.querySelectorAll("input[name=baseline]")) {
  choice.addEventListener("change", () => {
    for (const table of document.querySelectorAll("[data-baseline]"))
      table.hidden = table.dataset.baseline !== choice.value;
  });
}

await show();
