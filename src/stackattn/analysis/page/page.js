// Fills the page: key figures, learning curves, results by length, the table of runs and the stepper.

const data = JSON.parse(byId("data").textContent);
const reference = (name, dash, points) => ({
  name,
  label: name,
  reference: true,
  look: { stroke: "var(--ink)", "stroke-width": 1, "stroke-dasharray": dash },
  points,
});
const plain = (name) => name.replaceAll("-", " ");

byId("lede").textContent = data.lede;
if (data.sentences) {
  for (const word of document.querySelectorAll("[data-sentences]")) word.textContent = word.dataset.sentences;
  byId("real-note").hidden = true;
}
byId("made").textContent = data.made;
byId("curve-note").textContent = data.curveNote;
byId("tiles").append(
  ...data.tiles.map(([name, value, note]) =>
    make("div", {}, make("dt", {}, name), make("dd", {}, value, make("small", {}, note))),
  ),
);

const languages = [...new Set(data.runs.map((run) => run.language))];
for (const language of languages) {
  const runs = data.runs.filter((run) => run.language === language);
  const curves = runs.filter((run) => run.curve.length);
  if (curves.length) {
    const series = curves.map((run) => ({
      name: run.label,
      label: `${run.label}, ${run.name}`,
      look: lookOf(run.label),
      points: run.curve,
    }));
    byId("curve-charts").append(
      lineChart(plain(language), series, { xName: "epoch", yName: curves[0].curveName, zero: curves[0].fromZero }),
    );
  }
  const tested = runs.filter((run) => run.test);
  if (tested.length) {
    // The entropy is an estimate: use the one from the most strings.
    const tests = tested.map((run) => run.test).sort((a, b) => b.strings - a.strings);
    const { entropy, perfect, strings, longest } = tests[0];
    const series = [
      reference(`entropy of the language (estimated on ${strings} strings per length)`, "none", entropy),
      reference("perfect", "2 3", perfect),
      ...tested.map((run) => ({
        name: run.label,
        label: `${run.label}, ${run.name}`,
        look: lookOf(run.label),
        points: run.test.model,
      })),
    ].filter((one) => one.points.length);
    const options = { xName: "length", yName: "nats per symbol", zero: false, marker: longest };
    byId("length-charts").append(lineChart(plain(language), series, options));
    byId("lengths").hidden = false;
  }
}
byId("results").classList.toggle("single", languages.length === 1);
if (!byId("curve-charts").children.length)
  byId("curve-charts").append(make("p", { class: "quiet" }, "No evaluations yet."));

const columns = data.columns
  .map(([name, kind], i) => ({ name, kind, i }))
  .filter(({ i }) => data.runs.some((run) => run.row[i]));
const line = (kind, row) =>
  make("tr", { class: kind }, ...columns.map(({ kind, i }) => make("td", { class: kind }, row[i])));
byId("runs").append(
  make(
    "thead",
    {},
    make("tr", {}, ...columns.map(({ name, kind }) => make("th", { scope: "col", class: kind }, name))),
  ),
);
const rowsOf = (language) => [
  ...data.runs.filter((run) => run.language === language).map((run) => line(run.best ? "best" : "", run.row)),
  ...data.baselines.filter((one) => one.language === language).map(({ row }) => line("baseline", row)),
];
byId("runs").append(make("tbody", {}, ...languages.flatMap(rowsOf)));
byId("table-note").textContent = data.tableNote;

const seen = data.runs.filter((run) => run.strings.some((string) => string.stacks.length));
if (seen.length) {
  byId("stepper").hidden = false;
  window.stepper = new Stepper(seen, data.sentences);
}
