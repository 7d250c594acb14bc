// The stepper shows one string of one run, symbol by symbol. Step 0 is BOS, except in the encoder of a translation
// model, whose input has no BOS. An LSTM does not read BOS. Column 0 of the weights is the bottom.

class Stepper {
  constructor(runs, sentences) {
    this.runs = runs;
    this.sentences = sentences;
    this.run = this.string = this.stack = this.chosen = 0;
    this.map = "tops";
    this.step = 0;
    this.timer = null;
    this.redraw = { timeline: null, map: null };
    this.choices();
    this.listen();
    this.show();
  }

  get text() {
    return this.runs[this.run].strings[this.string];
  }
  get trace() {
    return this.text.stacks[this.stack];
  }
  get last() {
    return this.text.tokens.length - 1;
  }
  get bottom() {
    return this.trace.bottom;
  }

  choices() {
    const box = byId("choices");
    const names = {
      run: this.runs.map((run) => `${run.label} on ${run.language} (${run.name})`),
      string: this.runs[this.run].strings.map((s) => s.title),
      stack: this.text.stacks.map((s) => `${s.name}, ${s.kind}`),
    };
    const titles = { run: "Run", string: this.sentences ? "Sentence" : "String", stack: "Stack" };
    box.replaceChildren();
    for (const [kind, labels] of Object.entries(names)) {
      if (labels.length < 2) continue;
      const select = make(
        "select",
        { id: `choose-${kind}` },
        ...labels.map((label, i) => make("option", { value: i }, label)),
      );
      select.value = this[kind];
      select.addEventListener("change", () => {
        this[kind] = Number(select.value);
        if (kind === "run") this.string = 0;
        if (kind !== "stack") this.stack = 0;
        this.choices();
        this.show();
        byId(`choose-${kind}`).focus();
      });
      box.append(make("label", { class: "choice" }, titles[kind], select));
    }
  }

  listen() {
    const go = {
      "go-first": () => 0,
      "go-back": () => this.step - 1,
      "go-next": () => this.step + 1,
      "go-last": () => this.last,
    };
    for (const [id, where] of Object.entries(go)) byId(id).addEventListener("click", () => this.jump(where()));
    byId("slider").addEventListener("input", (event) => this.jump(Number(event.target.value)));
    byId("play").addEventListener("click", () => (this.timer ? this.stop() : this.play()));
    for (const id of ["run-choice", "listing-choice"]) {
      byId(id).addEventListener("change", (event) => {
        this.chosen = Number(event.target.value);
        this.list();
        this.update();
      });
    }
    byId("map-choice").addEventListener("change", (event) => {
      this.map = event.target.value;
      this.drawMap();
      this.update();
    });
    document.addEventListener("keydown", (event) => {
      if (event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
      if (event.target.closest("select, input")) return;
      const keys = { ArrowLeft: this.step - 1, ArrowRight: this.step + 1 };
      // Elsewhere on the page, Home and End scroll the focused element.
      if (event.target === document.body || event.target.closest("#stepper"))
        Object.assign(keys, { Home: 0, End: this.last });
      if (!(event.key in keys)) return;
      event.preventDefault();
      this.jump(keys[event.key]);
    });
  }

  play() {
    if (this.step === this.last) this.go(0);
    this.timer = setInterval(() => (this.step < this.last ? this.go(this.step + 1) : this.stop()), 700);
    byId("play").textContent = "Pause";
    byId("play").setAttribute("aria-pressed", "true");
  }

  stop() {
    clearInterval(this.timer);
    this.timer = null;
    byId("play").textContent = "Play";
    byId("play").setAttribute("aria-pressed", "false");
  }

  jump(step) {
    this.stop();
    this.go(step);
  }

  go(step) {
    this.step = Math.max(0, Math.min(this.last, step));
    this.update();
  }

  // Redraw everything for a new string or stack.
  show() {
    const { tokens } = this.text;
    this.step = 0;
    this.chosen = 0;
    byId("slider").max = this.last;
    byId("tape").replaceChildren(
      ...tokens.map((token, t) => {
        const cell = make("span", {}, token);
        cell.addEventListener("click", () => this.jump(t));
        return cell;
      }),
    );
    const runs = () =>
      this.trace.runs.map((run, i) => make("option", { value: i }, `${run.name} (${share(run.share)})`));
    byId("run-choice").replaceChildren(...runs());
    byId("listing-choice").replaceChildren(...runs());
    const maps = [
      ["tops", "on top"],
      ["contents", "anywhere on the stack"],
    ];
    (this.trace.split ?? []).forEach((part, i) =>
      maps.push([String(i), `on top, state q${part.state}, symbol ${part.symbol}`]),
    );
    byId("map-choice").replaceChildren(...maps.map(([value, label]) => make("option", { value }, label)));
    if (!maps.some(([value]) => value === this.map)) this.map = "tops";
    byId("map-choice").value = this.map;
    byId("real-key").hidden = this.text.real === null;
    byId("next-key").hidden = !this.text.model;
    const rows = [
      "the weight of each action (a filled cell is 1)",
      "the expected height of the stack",
      this.text.lossNote,
    ];
    const list = new Intl.ListFormat("en").format(rows.filter(Boolean));
    byId("timeline-caption").textContent = `From top to bottom: ${list}. Click on a step to go there.`;
    this.list();
    this.drawTimeline();
    this.drawMap();
    this.update();
  }

  // Update everything that depends on the step.
  update() {
    const { step, text, trace } = this;
    const token = text.tokens[step];
    const reads = trace.actions[step] ? `reads ${token}` : `${token}, which is not read`;
    byId("slider").value = step;
    byId("slider").setAttribute("aria-valuetext", `step ${step} of ${this.last}: ${reads}`);
    byId("symbol").textContent = token;
    const row = trace.tops[step];
    const most = row.indexOf(Math.max(...row));
    const real =
      text.real === null
        ? ""
        : `; top of a real stack: ${text.real[step] < 0 ? "empty" : this.element(text.real[step] + 1)}`;
    byId("status").textContent =
      `Step ${step} of ${this.last}: ${reads}. ` +
      `Most weight: ${this.element(most)} (${(row[most] / 1000).toFixed(2)})${real}.`;
    [...byId("tape").children].forEach((cell, t) => (cell.className = t === step ? "now" : t < step ? "past" : ""));
    const [tape, cell] = [byId("tape"), byId("tape").children[step]];
    tape.scrollLeft = cell.offsetLeft - tape.offsetLeft - tape.clientWidth / 2;
    this.showActions();
    this.showSoft(row);
    this.showSingle();
    this.showNext();
    this.redraw.timeline(step);
    this.redraw.map(step);
    const list = byId("listing");
    [...list.children].forEach((line, t) => (line.className = t === step ? "now" : ""));
    list.scrollTop = list.children[step].offsetTop - list.clientHeight / 2;
  }

  element(column) {
    return column === 0 ? this.bottom : `${this.text.tokens[column - 1]} of step ${column - 1}`;
  }

  showActions() {
    const actions = this.trace.actions[this.step];
    const bars = this.trace.actionNames.map((name, i) =>
      bar(make("span", {}, name), [[actions ? actions[i] : 0, "strong"]], actions ? actions[i] : null),
    );
    byId("actions").replaceChildren(...bars);
    byId("height").textContent = actions
      ? `Expected height ${this.trace.heights[this.step].toFixed(2)}`
      : "This model does not read BOS: the stack is in its initial state.";
  }

  showSoft(row) {
    const contents = this.trace.contents[this.step];
    const real = this.text.real === null ? null : this.text.real[this.step];
    const bars = [];
    let hidden = 0;
    for (let t = this.step; t >= 0; t--) {
      const top = row[t + 1] ?? 0,
        any = Math.max(top, contents[t] ?? 0);
      if (any < 20 && t !== real) {
        hidden += any > 0;
        continue;
      }
      bars.push(this.softBar(this.text.tokens[t], t, top, any, t === real));
    }
    bars.push(this.softBar(this.bottom, null, row[0] ?? 0, row[0] ?? 0, real === -1));
    if (hidden) bars.push(make("p", { class: "quiet", role: "listitem" }, `and ${hidden} more below 0.02`));
    byId("soft").replaceChildren(...bars);
  }

  softBar(token, step, top, any, real) {
    const label = make(
      "span",
      { class: "token" },
      token,
      make("small", {}, step === null ? this.trace.bottomName : String(step)),
    );
    const made = bar(
      label,
      [
        [any, "pale"],
        [top, "strong"],
      ],
      any,
    );
    made.querySelector(".value").append(make("small", {}, (top / 1000).toFixed(2)));
    made.setAttribute("role", "listitem");
    if (real) {
      made.classList.add("real");
      made.title = "top of a real stack";
    }
    return made;
  }

  // Stack of a run of the automaton after a step, from bottom to top: [index of the token or -1, symbol] each.
  stackOf(run, step) {
    const stack = [[-1, 0]];
    for (let t = 0; t <= step; t++) {
      if (!run.steps[t]) continue;
      const [kind, , symbol] = run.steps[t];
      if (kind === 0) stack.push([t, symbol]);
      else if (kind === 1) stack[stack.length - 1] = [stack[stack.length - 1][0], symbol];
      else if (stack.length > 1) stack.pop(); // popping an empty superposition stack has no effect
      if (this.trace.depth && stack.length > 1 + this.trace.depth) stack.splice(1, 1); // the lowest element is lost
    }
    return stack;
  }

  move(run, t) {
    if (!run.steps[t]) return "not read";
    const [kind, state, symbol] = run.steps[t];
    const name = this.trace.actionNames[kind];
    if (!this.trace.hasStates) return name;
    return kind === 2 ? `${name} → q${state}` : `${name} ${symbol} → q${state}`;
  }

  showSingle() {
    const run = this.trace.runs[this.chosen];
    byId("operation").textContent = this.move(run, this.step);
    byId("single").replaceChildren(
      ...this.stackOf(run, this.step)
        .reverse()
        .map(([t, symbol]) => {
          const name = t < 0 ? this.bottom : this.text.tokens[t];
          const note = [t < 0 ? "" : `step ${t}`, this.trace.hasStates ? `symbol ${symbol}` : ""]
            .filter(Boolean)
            .join(", ");
          return make(
            "div",
            { class: t < 0 ? "box bottom" : "box", role: "listitem" },
            make("span", {}, name),
            make("small", {}, note),
          );
        }),
    );
  }

  showNext() {
    if (!this.text.model) {
      this.showLikely();
      return;
    }
    const model = this.text.model[this.step],
      truth = this.text.truth[this.step];
    const bars = this.runs[this.run].symbols.map((symbol, i) => {
      const label = make("span", { class: "token" }, symbol);
      return bar(
        label,
        [
          [model[i], "strong"],
          [truth ? truth[i] : 0, "outlined"],
        ],
        model[i],
        truth ? truth[i] : null,
      );
    });
    const notes = [];
    const [from, to] = this.text.lengths;
    if (!truth) notes.push(`No string of ${from}–${to} symbols in the language begins with these symbols.`);
    else if (!this.text.inLanguage) notes.push(`The complete string is not in the language.${this.text.whyExcluded}`);
    if (truth && !this.text.seenLength) {
      notes.push(
        `Training had no strings of this length. The language’s distribution is shown for ${from}–${to} symbols.`,
      );
    }
    byId("next").replaceChildren(...bars);
    byId("next-notes").replaceChildren(...notes.map((note) => make("p", { class: "quiet" }, note)));
  }

  // The most likely next tokens and the actual one; for an encoder, a note that it predicts nothing.
  showLikely() {
    const likely = this.text.likely[this.step] ?? [],
      following = this.text.following[this.step];
    const bars = likely.map(([token, weight]) =>
      bar(make("span", { class: "token" }, token), [[weight, "strong"]], weight),
    );
    byId("next").replaceChildren(...bars);
    const note = following ? `Actual next token: ${following[0]} (${(following[1] / 1000).toFixed(2)})` : "";
    byId("next-notes").replaceChildren(make("p", { class: "quiet" }, note || "An encoder predicts nothing."));
  }

  list() {
    byId("run-choice").value = byId("listing-choice").value = this.chosen;
    const run = this.trace.runs[this.chosen];
    const width = Math.max(...this.text.tokens.map((token) => token.length));
    byId("listing").replaceChildren(
      ...this.text.tokens.map((token, t) => {
        const depth = Math.max(this.stackOf(run, t - 1).length, this.stackOf(run, t).length) - 1;
        const line = make("li", {}, `${token.padStart(width)}  ${"· ".repeat(depth)}${this.move(run, t)}`);
        line.addEventListener("click", () => this.jump(t));
        return line;
      }),
    );
  }

  drawTimeline() {
    this.redraw.timeline = timeline(byId("timeline"), this.text, this.trace, (t) => this.jump(t));
  }

  drawMap() {
    const { map, trace } = this;
    const rows =
      map === "contents"
        ? trace.contents.map((row) => [0, ...row])
        : map === "tops"
          ? trace.tops
          : trace.split[Number(map)].tops;
    this.redraw.map = attentionMap(byId("map"), this.text, rows, this.bottom, map === "contents", (t) => this.jump(t));
    const rings = this.text.real === null || map === "contents" ? "" : " Rings: the top of a real stack.";
    byId("map-caption").replaceChildren(scale(), `Rows are steps; columns are tokens in reading order.${rings}`);
  }
}

function share(value) {
  return value >= 0.001 ? percent(value) : value === 0 ? "0%" : `share ${value.toExponential(0)}`;
}

// fills: [[thousandths, class], ...]. With a second value, two bars are drawn, one above the other.
function bar(label, fills, value, second) {
  const track = make("div", { class: "track" });
  for (const [size, kind] of fills)
    if (size > 0) {
      const fill = make("div", { class: `fill ${kind}` });
      fill.style.width = `${size / 10}%`;
      track.append(fill);
    }
  const number = (x) => (x === null ? "–" : (x / 1000).toFixed(2));
  const values =
    second === undefined ? [number(value)] : [make("span", {}, number(value)), make("span", {}, number(second))];
  return make(
    "div",
    { class: second === undefined ? "bar" : "bar two" },
    label,
    track,
    make("div", { class: "value" }, ...values),
  );
}
