// What the player and the live page draw alike: elements, numbers, the colours and face of the dial.
"use strict";
const sdjepa = (() => {
  const SVG = "http://www.w3.org/2000/svg";
  const draw = (parent, tag, attributes = {}, text = "") => {
    const element = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
    if (text) element.textContent = text;
    parent.append(element);
    return element;
  };
  const shown = (value) => value.toFixed(2).replace("-", "\u2212");
  const angleColour = (colours) => (theta) => {
    const turn = ((theta / (2 * Math.PI)) % 1 + 1) % 1;
    return colours[Math.floor(turn * colours.length) % colours.length];
  };
  // A circle of colours in a 200 by 200 drawing; returns the group whose y axis points up.
  const dialFace = (svg, colours) => {
    const g = draw(svg, "g", { transform: "translate(100 100) scale(1 -1)" });
    colours.forEach((stroke, i) => {
      const [a, b] = [i, i + 1.08].map((n) => (2 * Math.PI * n) / colours.length);
      const d = `M${88 * Math.cos(a)} ${88 * Math.sin(a)}L${88 * Math.cos(b)} ${88 * Math.sin(b)}`;
      draw(g, "path", { d, stroke, "stroke-width": 8, fill: "none" });
    });
    [26, 52, 78].forEach((r) => draw(g, "circle", { r, fill: "none", stroke: "var(--rule)" }));
    return g;
  };
  return { draw, shown, angleColour, dialFace };
})();
