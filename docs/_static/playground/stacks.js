// Both stacks in plain JavaScript, for short strings. The tests compare all numbers with those of the library.

// The superposition stack: levels[t][d][i] is the share of the value pushed at step i in the element at depth d after
// step t; levels[t][0] is a row of the attention map. actions[t] is [push, no-op, pop].
function superpositionLevels(actions) {
  const T = actions.length;
  const empty = () => new Array(T).fill(0);
  let before = [];
  return actions.map(([push, keep, pop], t) => {
    const pushed = empty();
    pushed[t] = 1;
    const at = (d) => (d < 0 ? pushed : (before[d] ?? empty()));
    const after = [];
    for (let d = 0; d <= t; d++) {
      const [above, same, below] = [at(d - 1), at(d), at(d + 1)];
      after.push(same.map((x, i) => push * above[i] + keep * x + pop * below[i]));
    }
    before = after;
    return after;
  });
}

// A semiring defines how the weights of runs are added and multiplied. The result is the sum of the weights (SUM), the
// best run (BEST) or a random run (sampler).
const SUM = {
  zero: 0,
  one: 1,
  step: (logWeight) => Math.exp(logWeight),
  plus: (a, b) => a + b,
  times: (a, b) => a * b,
};

const BEST = {
  zero: { log: -Infinity },
  one: { log: 0 },
  step: (log, operation) => ({ log, operation }),
  plus: (a, b) => (b.log > a.log ? b : a),
  times: (a, b) => (a.log + b.log === -Infinity ? BEST.zero : { log: a.log + b.log, parts: [a, b] }),
};

// Adding keeps one of the two at random, in proportion to their weights, so the result is an exact sample.
function sampler(random) {
  return {
    zero: { weight: 0 },
    one: { weight: 1 },
    step: (log, operation) => ({ weight: Math.exp(log), operation }),
    plus: (a, b) => {
      const weight = a.weight + b.weight;
      return { ...(random() * weight < b.weight ? b : a), weight };
    },
    times: (a, b) => ({ weight: a.weight * b.weight, parts: [a, b] }),
  };
}

// The operations of a best or sampled run, in order.
function operations(found) {
  if (found.operation) return [found.operation];
  return (found.parts ?? []).flatMap(operations);
}

// The nondeterministic stack of an automaton with one state and S symbols, symbol 0 at the bottom. transitions[t] has
// log weights push[x][y], replace[x][y] and pop[x]. Returns tops[t][i][y], not normalised: the runs to step t whose top
// element has symbol y and is the bottom (i = 0) or was pushed at step i - 1.
function nondeterministicTops(transitions, ring) {
  const [T, S] = [transitions.length, transitions[0]?.pop.length ?? 1];
  const symbols = [...Array(S).keys()];
  const zeros = () => symbols.map(() => ring.zero);
  // inner[i][t][x][y]: from x on top at time i, one element is pushed, and it is on top at time t, with symbol y
  const inner = [];
  // The runs that have their element on top at time t: the last step replaced it, or popped the one above it.
  const grow = (row, i, t) => {
    const { replace, pop } = transitions[t - 1];
    return symbols.map((y) => {
      let total = ring.zero;
      for (const z of symbols) {
        const step = ring.step(replace[z][y], { kind: "replace", symbol: y });
        total = ring.plus(total, ring.times(row[t - 1][z], step));
      }
      for (let k = i; k < t - 1; k++) {
        for (const u of symbols) {
          const above = ring.times(inner[k][t - 1][y][u], ring.step(pop[u], { kind: "pop" }));
          total = ring.plus(total, ring.times(row[k][y], above));
        }
      }
      return total;
    });
  };
  for (let i = T - 1; i >= 0; i--) {
    const rows = symbols.map((x) => {
      const row = { [i + 1]: symbols.map((y) => ring.step(transitions[i].push[x][y], { kind: "push", symbol: y })) };
      for (let t = i + 2; t <= T; t++) row[t] = grow(row, i + 1, t);
      return row;
    });
    inner[i] = {};
    for (let t = i + 1; t <= T; t++) inner[i][t] = rows.map((row) => row[t]);
  }
  const bottom = { 0: [ring.one, ...zeros().slice(1)] };
  for (let t = 1; t <= T; t++) bottom[t] = grow(bottom, 0, t);
  // all[t][x]: runs to time t with x on top
  const all = [bottom[0]];
  const tops = [];
  for (let t = 1; t <= T; t++) {
    const row = [bottom[t]];
    for (let i = 0; i < t; i++) {
      row.push(
        symbols.map((y) => symbols.map((x) => ring.times(all[i][x], inner[i][t][x][y])).reduce(ring.plus, ring.zero)),
      );
    }
    tops.push(row);
    all.push(symbols.map((y) => row.map((part) => part[y]).reduce(ring.plus, ring.zero)));
  }
  return tops;
}

// The attention weights [t][i][y], each row divided by its sum.
function nondeterministicWeights(transitions) {
  return nondeterministicTops(transitions, SUM).map((row) => {
    const total = row.flat().reduce((a, b) => a + b, 0);
    return row.map((part) => part.map((x) => x / total));
  });
}

// One run: the best one with BEST, a random one with a sampler.
function findRun(transitions, ring) {
  const tops = nondeterministicTops(transitions, ring);
  return operations(tops[tops.length - 1].flat().reduce(ring.plus, ring.zero));
}

// The stack after each step of a run, bottom first, as [step that pushed the element or -1, symbol].
function stacksOf(run) {
  let stack = [[-1, 0]];
  return run.map(({ kind, symbol }, step) => {
    const pushed = kind === "push" ? step : stack[stack.length - 1][0];
    if (kind !== "push") stack = stack.slice(0, -1);
    if (kind !== "pop") stack = [...stack, [pushed, symbol]];
    return stack;
  });
}
