// Building elements. Text from outside only ever becomes text nodes.

export const byId = (id) => document.getElementById(id);

export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

// White space by visible signs, for where a token stands alone.
export function visible(text) {
  if (text === "") return "∅";
  return text.replaceAll("\n", "↵").replaceAll("\t", "⇥").replaceAll(" ", "␣");
}

// A token's text in words, for its title.
export const quoted = (text) => (text === "" ? "no text of its own" : JSON.stringify(text));

export const number = (value, digits = 0) =>
  Number.isFinite(value)
    ? value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })
    : "–";

export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;

// Runs `draw` soon, and not more often than every 80 ms: the page shares the processor with the
// model, and what it spends on drawing the model does not get.
export function throttled(draw) {
  let timer = null;
  const now = () => {
    clearTimeout(timer);
    timer = null;
    draw();
  };
  const soon = () => {
    timer ??= setTimeout(now, 80);
  };
  return { soon, now };
}
