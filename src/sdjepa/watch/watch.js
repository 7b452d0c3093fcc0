// The live page: a socket in, drawings out; buttons become small messages. No library.
"use strict";
(() => {
  const { draw, shown, angleColour, dialFace } = sdjepa;
  const $ = (selector) => document.querySelector(selector);
  const page = $(".live");
  const token = new URLSearchParams(location.search).get("token");
  const withToken = (path) => (token ? `${path}?token=${encodeURIComponent(token)}` : path);
  const TRACES = [
    ["theta", "\u03b8, radians", "The compass angle. It should move with the task and jump only when the scene jumps."],
    ["radius", "r", "The length of the progress part. Near 0 the angle means nothing."],
    ["to_goal", "way to the goal, in the latent", "Length of the difference between the latents of now and goal. Good: falls when the true way does."],
    ["distance", "way to the goal, in truth", "The benchmark's own distance, which the planner never sees. Good: falls to the goal."],
    ["surprise", "surprise of the latent", "Squared error of what the model foresaw one action block ago. Good: low, with a peak where you interfere."],
    ["turn", "surprise of \u03b8, radians", "The same as an angle: 0 is as foreseen, 3.14 the opposite."],
  ];
  let about = null; // what hello said
  let film = null; // rows so far of the episode that is shown
  let colour = null;
  let socket = null;
  let waited = 0;

  // --- the socket

  function connect() {
    const scheme = location.protocol === "https:" ? "wss:" : "ws:";
    socket = new WebSocket(`${scheme}//${location.host}${withToken("/live")}`);
    socket.onopen = () => { waited = 0; };
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (message.kind === "hello") greet(message);
      else if (message.kind === "state") {
        show(message);
        tell({ do: "seen" });
      } else if (message.kind === "error") say(message.text);
      else if (message.kind === "saved") saved(message);
    };
    socket.onclose = () => {
      link("lost", "no connection, trying again");
      waited = Math.min(4000, waited ? 2 * waited : 250);
      setTimeout(connect, waited);
    };
  }
  function tell(message) {
    if (socket && socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message));
  }
  function link(state, text) {
    const element = $(".link");
    element.dataset.link = state;
    if (element.textContent !== text) element.textContent = text;
  }
  let silence = null;
  function say(text, good = false) {
    const element = $(".say");
    element.replaceChildren(text);
    element.classList.toggle("good", good);
    clearTimeout(silence);
    if (text && !good) silence = setTimeout(() => element.replaceChildren(), 7000);
    return element;
  }
  function saved({ name, path }) {
    const anchor = document.createElement("a");
    anchor.href = withToken(`/recordings/${name}`);
    anchor.target = "_blank";
    anchor.rel = "noopener";
    anchor.textContent = "open it";
    say(`Saved as ${path}, `, true).append(anchor);
  }

  // --- what stays

  function options(select, values, label = (value) => value) {
    const kept = select.value;
    select.replaceChildren(...values.map((value, i) => new Option(label(value, i), value)));
    if (values.includes(kept)) select.value = kept;
  }
  function greet(message) {
    about = message;
    colour = angleColour(about.colours);
    film = null;
    $(".where").textContent = `${about.label} in ${about.env}`;
    options($("#task"), about.tasks.map((_, i) => String(i)), (i) => about.tasks[Number(i)]);
    options($("#solver"), about.solvers);
    options($("#cost"), about.costs, (cost) => `${cost} cost`);
    const blocks = Array.from({ length: about.horizon }, (_, i) => String(i + 1));
    options($("#replan"), blocks, (n) => `${n * about.frame_skip} steps`);
    $("#pixels").textContent = `, ${about.image_size} by ${about.image_size}`;
    $(".dial").hidden = !about.has_needle;
    $("#legend").innerHTML = about.extent
      ? '<i style="--c:#00659e"></i>where the best candidates of the last round of the search would really lead; ' +
        '<i style="--c:#888c92"></i>those of the first round. Thick: the way so far, coloured by \u03b8. ' +
        "Faint: the goal. Click to move it, shift-click to move the agent."
      : "This environment is not flat, so candidates are not drawn here.";
    setScene();
    setDial();
    setTraces();
  }

  // --- the scene

  const scene = {};
  function setScene() {
    const svg = $(".scene svg");
    svg.replaceChildren();
    svg.classList.toggle("plain", !about.extent);
    scene.picture = draw(svg, "image", { width: 224, height: 224 });
    scene.ghost = draw(svg, "image", { width: 224, height: 224, class: "ghost" });
    for (const name of ["first", "last", "way"]) scene[name] = draw(svg, "g");
    scene.goal = draw(svg, "text", { "text-anchor": "middle", class: "goal" }, "\u2605");
    scene.here = draw(svg, "circle", { r: 6.5, class: "here" });
    svg.onclick = (event) => {
      if (!about.extent) return;
      const box = svg.getBoundingClientRect();
      const [left, right, top, bottom] = about.extent;
      const x = left + ((right - left) * (event.clientX - box.left)) / box.width;
      const y = top + ((bottom - top) * (event.clientY - box.top)) / box.height;
      tell({ do: event.shiftKey ? "teleport" : "aim", x, y });
    };
  }
  function onPicture([x, y]) {
    const [left, right, top, bottom] = about.extent;
    return [(224 * (x - left)) / (right - left), (224 * (y - top)) / (bottom - top)];
  }
  const line = (points) => points.map((p) => onPicture(p).map((v) => v.toFixed(1)).join(",")).join(" ");
  function drawScene(state) {
    scene.picture.setAttribute("href", `data:image/png;base64,${state.picture}`);
    const flat = Boolean(about.extent);
    scene.goal.style.display = scene.here.style.display = flat ? "" : "none";
    if (!flat) return;
    if (state.goal) scene.ghost.setAttribute("href", `data:image/png;base64,${state.goal.picture}`);
    if ("sketch" in state) {
      for (const [name, kind] of [["first", "first"], ["last", "final"]]) {
        scene[name].replaceChildren();
        const paths = state.sketch ? state.sketch[name] : [];
        paths.forEach((path) => draw(scene[name], "polyline", { points: line(path), class: `tried ${kind}` }));
      }
    }
    const cuts = new Set(film.marks.filter((m) => m.label !== "goal moved" && m.label !== "time reversed").map((m) => m.row));
    scene.way.replaceChildren();
    const from = Math.max(1, film.places.length - 150);
    const pieces = [];
    for (let i = from; i < film.places.length; i += 1) {
      const [a, b] = [onPicture(film.places[i - 1]), onPicture(film.places[i])];
      pieces.push([{ x1: a[0], y1: a[1], x2: b[0], y2: b[1] }, cuts.has(i), film.rows.theta[i]]);
    }
    pieces.forEach(([ends, cut]) => { if (!cut) draw(scene.way, "line", { ...ends, class: "case" }); });
    pieces.forEach(([ends, cut, theta]) =>
      draw(scene.way, "line", cut ? { ...ends, class: "jump" } : { ...ends, class: "walked", stroke: theta === null ? "#00659e" : colour(theta) })
    );
    const [x, y] = onPicture(film.places.at(-1));
    scene.here.setAttribute("cx", x);
    scene.here.setAttribute("cy", y);
    const [gx, gy] = onPicture(film.goal.place);
    scene.goal.setAttribute("x", gx);
    scene.goal.setAttribute("y", gy + 6);
  }

  // --- the dial

  const dial = {};
  function setDial() {
    const svg = $(".dial svg");
    svg.replaceChildren();
    if (!about.has_needle) return;
    const g = dialFace(svg, about.colours);
    dial.jolt = draw(g, "circle", { r: 60, class: "jolt" });
    dial.trail = draw(g, "polyline", { fill: "none", stroke: "var(--faint)", "stroke-width": 1.5 });
    dial.star = draw(svg, "text", { "text-anchor": "middle", class: "star" }, "\u2605");
    dial.needle = draw(g, "line", { class: "needle", x1: 0, y1: 0, "stroke-width": 4.5, "stroke-linecap": "round" });
    draw(g, "circle", { r: 4.5, fill: "var(--ink)" });
  }
  function drawDial(state) {
    if (!about.has_needle) return;
    const { theta, radius } = film.rows;
    const far = Math.max(...radius.slice(-150), film.goal.radius, 1e-9);
    const at = (t, r) => [(78 * r * Math.cos(t)) / far, (78 * r * Math.sin(t)) / far];
    const [x, y] = at(state.theta, state.radius);
    dial.needle.setAttribute("x2", x);
    dial.needle.setAttribute("y2", y);
    dial.needle.setAttribute("stroke", colour(state.theta));
    const points = [];
    for (let i = Math.max(0, theta.length - 16); i < theta.length; i += 1) points.push(at(theta[i], radius[i]).join(","));
    dial.trail.setAttribute("points", points.join(" "));
    const [gx, gy] = at(film.goal.theta, film.goal.radius);
    dial.star.setAttribute("x", 100 + gx);
    dial.star.setAttribute("y", 106 - gy);
    page.dataset.theta = state.theta;
    page.dataset.radius = state.radius;
  }
  function jolt() {
    if (!dial.jolt) return;
    dial.jolt.classList.remove("now");
    dial.jolt.getBoundingClientRect(); // makes the browser notice, so that the animation starts anew
    dial.jolt.classList.add("now");
  }

  // --- the traces

  let traces = [];
  function setTraces() {
    const parent = $(".traces");
    parent.replaceChildren();
    const kept = TRACES.filter(([name]) => about.has_needle || !["theta", "radius", "turn"].includes(name));
    traces = kept.map(([name, words, meaning]) => {
      const row = document.createElement("div");
      row.className = "trace";
      row.title = meaning;
      const [label, value] = [document.createElement("span"), document.createElement("b")];
      label.textContent = words;
      row.append(label, value);
      const svg = draw(row, "svg", { viewBox: "0 0 600 56", preserveAspectRatio: "none", role: "img", "aria-label": `${words}. ${meaning}` });
      parent.append(row);
      return { name, value, back: draw(svg, "g"), path: draw(svg, "g") };
    });
  }
  // An angle that passes its seam has not jumped.
  function unwrapped(angles) {
    let turns = 0;
    return angles.map((angle, i) => {
      if (i) turns -= Math.round((angle - angles[i - 1]) / (2 * Math.PI));
      return angle + 2 * Math.PI * turns;
    });
  }
  function drawTraces(state) {
    const last = Math.max(state.budget, film.places.length - 1);
    const x = (row) => ((600 * row) / last).toFixed(1);
    for (const { name, value, back, path } of traces) {
      const values = film.rows[name];
      const drawn = name === "theta" ? unwrapped(values) : values;
      const known = drawn.filter((v) => v !== null);
      const low = name === "theta" ? Math.min(...known) : 0;
      // A needle that hardly moves must not look as if it did.
      const high = Math.max(...known, low + (name === "theta" ? 0.6 : 1e-9));
      const y = (v) => (52 - (46 * (v - low)) / (high - low || 1)).toFixed(1);
      path.replaceChildren();
      if (name === "theta") {
        for (let i = 1; i < drawn.length; i += 1) {
          draw(path, "line", { x1: x(i - 1), y1: y(drawn[i - 1]), x2: x(i), y2: y(drawn[i]), class: "line", style: `stroke:${colour(values[i])}` });
        }
      } else {
        const points = drawn.map((v, i) => (v === null ? "" : `${x(i)},${y(v)}`)).join(" ");
        draw(path, "polyline", { points, class: "line" });
      }
      const now = values.at(-1);
      value.textContent = now === null ? "\u2013" : shown(now);
      back.replaceChildren();
      state.plans.forEach((row) => draw(back, "line", { x1: x(row), x2: x(row), y1: 52, y2: 56, class: "planned" }));
      film.marks.forEach((mark) => {
        const dashed = draw(back, "line", { x1: x(mark.row), x2: x(mark.row), y1: 0, y2: 56, class: "mark" });
        draw(dashed, "title", {}, mark.label);
      });
      if (last > state.budget) draw(back, "line", { x1: x(state.budget), x2: x(state.budget), y1: 0, y2: 56, class: "end" });
    }
  }

  // --- a state

  function show(state) {
    if (!about) return;
    if (!film || film.number !== state.film || state.first === 0) {
      film = { number: state.film, rows: {}, places: [], marks: [] };
      TRACES.forEach(([name]) => { film.rows[name] = []; });
    }
    if (state.first !== film.places.length) { socket.close(); return; } // we missed something: begin anew
    TRACES.forEach(([name]) => film.rows[name].push(...state.rows[name]));
    film.places.push(...state.places);
    if (state.goal) {
      film.goal = state.goal;
      $("#goal").src = `data:image/png;base64,${state.goal.picture}`;
    }
    const interfered = state.marks.length > film.marks.length;
    film.marks = state.marks;
    $("#seen").src = `data:image/png;base64,${state.seen}`;
    drawScene(state);
    drawDial(state);
    drawTraces(state);
    if (interfered) jolt();
    controls(state);
    words(state);
    page.dataset.row = state.row;
    page.dataset.film = state.film;
    page.dataset.running = state.running;
    page.dataset.marks = state.marks.map((mark) => mark.label).join(", ");
  }
  function controls(state) {
    const set = (id, value) => { const element = $(id); if (document.activeElement !== element && element.value !== String(value)) element.value = value; };
    set("#task", state.task);
    set("#solver", state.settings.solver);
    set("#cost", state.settings.cost);
    set("#scale", state.settings.scale);
    set("#replan", state.settings.replan);
    set("#gamma", state.settings.gamma);
    set("#pace", state.pace);
    $("#gamma-said").textContent = Number($("#gamma").value).toFixed(1);
    $("#pace-said").textContent = `${$("#pace").value}/s`;
    $("#endless").checked = state.endless;
    $("#gamma").disabled = $("#scale").disabled = state.settings.cost !== "angular";
    $("#run").textContent = state.running ? "Pause" : "Run";
    link("open", state.viewers > 1 ? `${state.viewers} watching` : "live");
  }
  function words(state) {
    const reached = state.solved_at !== null && state.row >= state.solved_at;
    $("#step").classList.toggle("reached", reached);
    $("#step").textContent = reached ? `Goal reached at step ${state.solved_at}` : `Step ${state.row} of ${state.budget}`;
    const moving = state.running && state.rate !== null;
    $("#rate").textContent = state.planning ? "planning" : moving ? `${state.rate.toFixed(state.rate < 10 ? 1 : 0)} steps a second` : "";
    if ("sketch" in state) $("#plan").textContent = state.sketch ? `the last plan took ${state.sketch.seconds.toFixed(2)} s` : "";
  }

  // --- the controls

  document.querySelectorAll("[data-do]").forEach((button) =>
    button.addEventListener("click", () => tell({ do: button.dataset.do }))
  );
  $("#run").addEventListener("click", () => tell({ do: page.dataset.running === "true" ? "pause" : "run" }));
  $("#task").addEventListener("change", (event) => tell({ do: "task", number: Number(event.target.value) }));
  for (const name of ["solver", "cost", "scale"]) {
    $(`#${name}`).addEventListener("change", (event) => tell({ do: "change", [name]: event.target.value }));
  }
  for (const name of ["gamma", "replan", "pace"]) {
    $(`#${name}`).addEventListener("change", (event) => {
      tell({ do: "change", [name]: Number(event.target.value) });
      event.target.blur();
    });
  }
  $("#endless").addEventListener("change", (event) => tell({ do: "change", endless: event.target.checked }));
  const KEYS = { ".": "step", t: "teleport", x: "swap", r: "reverse", n: "task" };
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, button, a")) return;
    if (event.key === " ") {
      event.preventDefault();
      $("#run").click();
    } else if (KEYS[event.key]) tell({ do: KEYS[event.key] });
  });
  connect();
})();
