// The steps of an answer, as columns to scroll through and as a table.

import { element, number, quoted, visible } from "./dom.js";

const MOST_SHOWN = 8; // draft tokens in a column; drafts may have dozens
const PER_GROUP = 50; // columns laid out together: a new one does not move those of other groups
const KIND_SIGN = { recovered: "→", bonus: "+", plain: "·" };

export class Timeline {
  #numDrawn = 0;
  #numRows = 0;

  constructor(root) {
    this.columns = root.querySelector(".timeline");
    this.table = root.querySelector(".as-table");
    this.rows = this.table.querySelector("tbody");
  }

  draw(steps) {
    const atEnd =
      this.columns.scrollLeft + this.columns.clientWidth >= this.columns.scrollWidth - 40;
    for (; this.#numDrawn < steps.length; this.#numDrawn += 1) {
      if (this.#numDrawn % PER_GROUP === 0) {
        this.columns.append(element("div", { className: "step-group" }));
      }
      this.columns.lastElementChild.append(column(steps[this.#numDrawn], this.#numDrawn + 1));
    }
    if (atEnd) this.columns.scrollLeft = this.columns.scrollWidth;
    if (this.table.open) this.drawTable(steps);
  }

  drawTable(steps) {
    for (; this.#numRows < steps.length; this.#numRows += 1) {
      this.rows.append(row(steps[this.#numRows], this.#numRows + 1));
    }
  }
}

function column(step, ordinal) {
  const made = element(
    "div",
    { className: "step" },
    element("span", { className: "step-number", title: `${number(step.ms, 1)} ms` }, `${ordinal}`),
  );
  step.drafted.slice(0, MOST_SHOWN).forEach((node, index) => {
    const held = step.held[index];
    made.append(
      piece(node.text, held ? "✓" : "✗", held ? "held" : "dropped", held ? "held" : "did not hold"),
    );
  });
  if (step.drafted.length > MOST_SHOWN) {
    const more = `${step.drafted.length - MOST_SHOWN} more`;
    made.append(element("span", { className: "piece more" }, more));
  }
  if (step.own) {
    const { kind, text } = step.own;
    made.append(piece(text, KIND_SIGN[kind] ?? "·", `own ${kind}`, kind));
  }
  return made;
}

function piece(text, sign, className, meaning) {
  return element(
    "span",
    { className: `piece ${className}`, title: `${quoted(text)}: ${meaning}` },
    element("span", { className: "sign" }, sign),
    element("span", { className: "piece-text" }, visible(text)),
  );
}

function row(step, ordinal) {
  const numHeld = step.held.filter(Boolean).length;
  const own = step.own ? `${visible(step.own.text)} (${step.own.kind})` : "–";
  const cells = [
    step.drafted.map((node) => visible(node.text)).join(" ") || "–",
    step.drafted.length ? `${numHeld} of ${step.drafted.length}` : "–",
    own,
    number(step.ms, 1),
  ];
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, `${ordinal}`),
    ...cells.map((text) => element("td", {}, text)),
  );
}
