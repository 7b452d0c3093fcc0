// The episode player: one slider moves frame, path, dial and traces together. No library.
"use strict";
(() => {
  const { draw, shown, angleColour, dialFace } = sdjepa;
  const tile = (parent, caption, label) => {
    const figure = document.createElement("figure");
    const svg = draw(figure, "svg", { viewBox: "0 0 200 200", role: "img", "aria-label": label });
    const words = document.createElement("figcaption");
    words.textContent = caption;
    figure.append(words);
    parent.append(figure);
    return svg;
  };

  function setUp(root) {
    const { items, colours } = JSON.parse(root.querySelector("script").textContent);
    const [select, play, slider, output] = ["select", ".play", "input", "output"].map((name) =>
      root.querySelector(name)
    );
    const tiles = root.querySelector(".tiles");
    const traces = root.querySelector(".traces");
    const colour = angleColour(colours);
    let item = items[0];
    let movers = []; // called with the row whenever it changes
    let timer = null;

    function scene() {
      const { path, view, theta, frames, goal } = item;
      const [left, right, top, bottom] = view;
      const x = (p) => (200 * (p[0] - left)) / (right - left);
      const y = (p) => (200 * (p[1] - top)) / (bottom - top);
      const over = frames.length && item.overlay !== false;
      const svg = tile(tiles, over ? "What it sees, and its path" : "Its path from above", "Path of the episode");
      draw(svg, "rect", { width: 200, height: 200, rx: 3, fill: "var(--paper)" });
      const picture = over ? draw(svg, "image", { width: 200, height: 200, preserveAspectRatio: "none" }) : null;
      const done = path.slice(1).map((p, i) =>
        draw(svg, "line", {
          x1: x(path[i]), y1: y(path[i]), x2: x(p), y2: y(p), "stroke-width": 3, "stroke-linecap": "round",
          stroke: theta ? colour(theta[i]) : "var(--blue)",
        })
      );
      if (goal) draw(svg, "text", { x: x(goal), y: y(goal) + 7, "text-anchor": "middle", class: "goal" }, "\u2605");
      const dot = draw(svg, "circle", { r: 5.5, fill: "var(--ink)", stroke: "var(--paper)", "stroke-width": 2 });
      movers.push((row) => {
        done.forEach((line, i) => line.setAttribute("opacity", i < row ? 1 : 0.18));
        dot.setAttribute("cx", x(path[row]));
        dot.setAttribute("cy", y(path[row]));
        if (picture) picture.setAttribute("href", frame(row));
      });
      if (frames.length && !over) still("What it sees", frame);
      if (item.goal_frame) still("The goal it is shown", () => `data:image/png;base64,${item.goal_frame}`);
    }
    function frame(row) {
      const index = Math.min(item.frames.length - 1, Math.floor(row / item.every));
      return `data:image/png;base64,${item.frames[index]}`;
    }
    function still(caption, source) {
      const svg = tile(tiles, caption, caption);
      const picture = draw(svg, "image", { width: 200, height: 200 });
      movers.push((row) => picture.setAttribute("href", source(row)));
    }

    function dial() {
      const { theta, radius } = item;
      if (!theta) return;
      const svg = tile(tiles, "\u03b8, the needle; its length is r", "Compass dial");
      const g = dialFace(svg, colours);
      const far = Math.max(...radius, 1e-9);
      const at = (row) => [
        (78 * radius[row] * Math.cos(theta[row])) / far, (78 * radius[row] * Math.sin(theta[row])) / far,
      ];
      const trail = draw(g, "polyline", { fill: "none", stroke: "var(--faint)", "stroke-width": 1.5 });
      const needle = draw(g, "line", { class: "needle", x1: 0, y1: 0, "stroke-width": 4, "stroke-linecap": "round" });
      draw(g, "circle", { r: 4.5, fill: "var(--ink)" });
      movers.push((row) => {
        const [x, y] = at(row);
        needle.setAttribute("x2", x);
        needle.setAttribute("y2", y);
        needle.setAttribute("stroke", colour(theta[row]));
        const points = [];
        for (let i = Math.max(0, row - 15); i <= row; i += 1) points.push(at(i).join(","));
        trail.setAttribute("points", points.join(" "));
        root.dataset.theta = theta[row];
        root.dataset.radius = radius[row];
      });
    }

    function trace({ name, values, first, every }, last) {
      const row = document.createElement("div");
      row.className = "trace";
      const label = document.createElement("span");
      const value = document.createElement("b");
      label.textContent = name;
      row.append(label, value);
      const svg = draw(row, "svg", { viewBox: "0 0 600 56", preserveAspectRatio: "none", role: "img", "aria-label": name });
      traces.append(row);
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const x = (step) => (600 * step) / last;
      const y = (v) => 51 - (46 * (v - low)) / (high - low || 1);
      item.marks.filter((mark) => mark.kind !== "change").forEach((mark) => {
        const line = draw(svg, "line", { x1: x(mark.row), x2: x(mark.row), y1: 0, y2: 56, class: "mark" });
        draw(line, "title", {}, mark.label);
      });
      const points = values.map((v, i) => `${x(first + i * every)},${y(v)}`).join(" ");
      draw(svg, "polyline", { points, class: "line" });
      item.marks.filter((mark) => mark.kind === "change").forEach((mark) => {
        const [at, wide] = [x(mark.row), 5];
        draw(draw(svg, "path", { d: `M${at - wide} 56L${at} 48L${at + wide} 56Z`, class: "change" }), "title", {}, mark.label);
      });
      const cursor = draw(svg, "line", { y1: 0, y2: 56, class: "cursor" });
      movers.push((now) => {
        cursor.setAttribute("x1", x(now));
        cursor.setAttribute("x2", x(now));
        const index = Math.round((now - first) / every);
        value.textContent = values[index] === undefined ? "\u2013" : shown(values[index]);
      });
      const seek = (event) => {
        const box = svg.getBoundingClientRect();
        go(Math.round((last * (event.clientX - box.left)) / box.width));
      };
      svg.addEventListener("pointerdown", (event) => { svg.setPointerCapture(event.pointerId); seek(event); });
      svg.addEventListener("pointermove", (event) => { if (event.buttons) seek(event); });
    }

    function go(row) {
      const now = Math.max(0, Math.min(Number(slider.max), row));
      slider.value = now;
      output.textContent = `frame ${now} of ${slider.max}`;
      movers.forEach((move) => move(now));
      root.dataset.row = now;
    }
    function stop() {
      clearInterval(timer);
      timer = null;
      play.textContent = "Play";
    }
    function start() {
      if (Number(slider.value) >= Number(slider.max)) go(0);
      play.textContent = "Pause";
      timer = setInterval(() => {
        if (Number(slider.value) >= Number(slider.max)) stop();
        else go(Number(slider.value) + 1);
      }, 90);
    }
    function choose(index) {
      stop();
      item = items[index];
      movers = [];
      tiles.replaceChildren();
      traces.replaceChildren();
      delete root.dataset.theta;
      slider.max = item.path.length - 1;
      scene();
      dial();
      item.traces.forEach((one) => trace(one, item.path.length - 1));
      root.querySelector(".note").textContent = item.note;
      go(0);
    }
    select.addEventListener("change", () => choose(Number(select.value)));
    slider.addEventListener("input", () => { stop(); go(Number(slider.value)); });
    play.addEventListener("click", () => (timer === null ? start() : stop()));
    root.addEventListener("keydown", (event) => {
      if (event.key !== " " || event.target === play || event.target === select) return;
      event.preventDefault();
      play.click();
    });
    choose(0);
  }
  document.querySelectorAll(".player").forEach(setUp);
})();
