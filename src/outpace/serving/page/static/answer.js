// What is known of one answer: a fold over the chunks of its stream. Nothing here draws.

export class Answer {
  constructor() {
    this.text = "";
    this.steps = []; // {tokens, drafted, held, own, ms}
    this.tokens = [];
    this.numDrafted = 0;
    this.numAccepted = 0;
    this.acceptedPerPosition = [];
    this.finishReason = null;
    this.usage = null;
    this.wasStopped = false;
  }

  add(chunk) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const choice of chunk.choices ?? []) {
      this.text += choice.delta?.content ?? choice.text ?? "";
      for (const step of choice.steps ?? []) this.#addStep(step);
      this.finishReason = choice.finish_reason ?? this.finishReason;
    }
  }

  #addStep({ tokens, drafted = [], ms }) {
    const accepted = tokens.filter((token) => token.kind === "accepted");
    this.steps.push({
      tokens,
      drafted,
      held: whichHeld(drafted, accepted),
      own: tokens.find((token) => token.kind !== "accepted") ?? null,
      ms,
    });
    this.tokens.push(...tokens);
    this.numDrafted += drafted.length;
    this.numAccepted += accepted.length;
    accepted.forEach((_, position) => {
      this.acceptedPerPosition[position] = (this.acceptedPerPosition[position] ?? 0) + 1;
    });
  }

  // Tokens per pass, the model's own included: 1 without speculation.
  get acceptanceLength() {
    return this.steps.length ? this.tokens.length / this.steps.length : NaN;
  }

  // Tokens per second after the first step, whose time is that of reading the prompt.
  get speed() {
    const later = this.steps.slice(1);
    const ms = later.reduce((sum, step) => sum + step.ms, 0);
    const numTokens = later.reduce((sum, step) => sum + step.tokens.length, 0);
    return ms > 0 ? (1000 * numTokens) / ms : NaN;
  }

  get isComplete() {
    return this.finishReason !== null && !this.wasStopped;
  }

  // By position: {accepted, drafted}. How many were drafted there is known once usage has come.
  get positions() {
    const said = this.usage?.speculation;
    const accepted = said?.accepted_per_position ?? this.acceptedPerPosition;
    const drafted = said?.drafted_per_position ?? [];
    const length = Math.max(accepted.length, drafted.length);
    return Array.from({ length }, (_, position) => ({
      accepted: accepted[position] ?? 0,
      drafted: drafted[position] ?? null,
    }));
  }
}

// Which draft tokens were accepted. They follow one another down the draft; in a tree, where others
// stand between them, the next one with the right id is as good as the one that was meant.
function whichHeld(drafted, accepted) {
  const held = drafted.map(() => false);
  let at = -1;
  for (const { id } of accepted) {
    at = drafted.findIndex((node, index) => index > at && node.id === id);
    if (at < 0) break;
    held[at] = true;
  }
  return held;
}

// How two answers to one request compare: index of the first token that differs (null: none), and
// how many times as fast the second was.
export function comparison(plain, speculative) {
  const [a, b] = [plain.tokens, speculative.tokens];
  const length = Math.max(a.length, b.length);
  let differsAt = null;
  for (let index = 0; index < length && differsAt === null; index += 1) {
    if (a[index]?.id !== b[index]?.id) differsAt = index;
  }
  if (differsAt === null && plain.text !== speculative.text) differsAt = length;
  return { differsAt, numTokens: length, ratio: speculative.speed / plain.speed };
}
