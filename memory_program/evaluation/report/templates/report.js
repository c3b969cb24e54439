// The question browser. Texts come from conversations and models, so they are only ever set as text.

const PAGE = 100;
const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch { // an address that was typed by hand
    return text;
  }
};

async function unpacked() {
  const bytes = Uint8Array.from(atob(at("records").textContent), (character) => character.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// -- a bank: its log, and the history of a memory ------------------------------------------------------

class Bank {
  constructor(operations) {
    this.operations = operations;
    this.memories = new Map();
    for (const operation of operations) {
      for (const memory of operation.created) this.memories.set(memory.memory_id, { ...memory });
      for (const id of operation.superseded) this.memories.get(id).ended = operation;
    }
  }

  get edits() {
    return this.operations.filter((operation) => operation.core !== null);
  }

  citing(turnId) {
    return [...this.memories.values()].filter((memory) => memory.sources.includes(turnId));
  }

  history(memoryId) {
    const ancestors = new Set([memoryId]), descendants = new Set([memoryId]), found = new Set();
    for (const operation of this.operations.toReversed()) {
      if (operation.created.some((memory) => ancestors.has(memory.memory_id))) {
        found.add(operation);
        operation.superseded.forEach((id) => ancestors.add(id));
      }
    }
    for (const operation of this.operations) {
      if (operation.superseded.some((id) => descendants.has(id))) {
        found.add(operation);
        operation.created.forEach((memory) => descendants.add(memory.memory_id));
      }
    }
    return this.operations.filter((operation) => found.has(operation));
  }
}

// -- one question ----------------------------------------------------------------------------------

class View {
  constructor(board, question) {
    this.board = board;
    this.question = question;
    this.talk = board.conversations[question.conversation];
  }

  bank(system) {
    const operations = this.talk.banks[system];
    return operations ? new Bank(operations) : null;
  }

  turn(id, tag = "span") {
    const turn = this.talk.turns[id];
    if (!turn) return make(tag, {}, id);
    const session = this.talk.sessions[turn.session];
    const where = make("small", {}, `${id}, ${session.id}, ${session.date} `);
    return make(tag, { "data-turn": id }, where, `${turn.speaker}: ${turn.text}`);
  }

  memory(memory, bank, prefix = "") {
    const state = memory.ended ? ` (superseded in v${memory.ended.version})` : "";
    const kind = make("small", {}, `${memory.kind} `);
    const summary = make("summary", {}, `${prefix}${memory.memory_id}${state} `, kind, line(memory));
    const details = make("details", { "data-memory": memory.memory_id }, summary);
    details.addEventListener("toggle", () => {
      if (details.childElementCount === 1) details.append(this.history(memory, bank));
    });
    return details;
  }

  history(memory, bank) {
    const list = make("ol", { class: "operations", "aria-label": `History of ${memory.memory_id}` });
    for (const operation of bank.history(memory.memory_id)) {
      const item = make("li", {}, provenance(operation));
      const before = new Set();
      for (const id of operation.superseded) {
        const old = bank.memories.get(id);
        old.sources.forEach((source) => before.add(source));
        item.append(make("p", { class: "gone" }, make("small", {}, "replaced "), `${id} ${line(old)}`));
      }
      for (const created of operation.created) {
        item.append(make("p", {}, `${created.memory_id} ${line(created)}`, held(created)));
        const turns = created.sources.filter((source) => !before.has(source));
        if (turns.length) item.append(make("ul", {}, ...turns.map((id) => this.turn(id, "li"))));
      }
      list.append(item);
    }
    return list;
  }

  evidence(result, bank) {
    const list = make("ul", {});
    this.question.evidence.forEach((id, place) => {
      const rank = result.ranks[place] === null ? "not ranked" : `ranked ${result.ranks[place]}`;
      const states = [rank, result.reached[place] ? "shown" : "not shown"];
      if (result.lost.includes(id)) states.push(`lost: ${result.fault}`);
      const item = make("li", {}, `${id}: ${states.join(", ")}`);
      bank?.citing(id).forEach((memory) => item.append(this.memory(memory, bank, "in ")));
      list.append(item);
    });
    return list;
  }

  shown(result, bank) {
    const ids = this.board.shown[result.shown];
    const summary = make("summary", {}, `Shown to the reader (${ids.length})`);
    const details = make("details", { class: "shown" }, summary);
    const evidence = new Set(this.question.evidence);
    details.addEventListener("toggle", () => {
      if (details.childElementCount > 1) return;
      const list = make("ol", {});
      for (const id of ids) {
        const memory = bank?.memories.get(id);
        const isEvidence = (memory?.sources ?? [id]).some((source) => evidence.has(source));
        const item = memory ? this.memory(memory, bank) : this.turn(id);
        const mark = isEvidence ? make("small", {}, "evidence ") : null;
        list.append(make("li", { class: isEvidence ? "evidence" : null }, mark, item));
      }
      if (bank?.edits.length) details.append(this.profile(bank.edits));
      details.append(list);
    });
    return details;
  }

  profile(edits) {
    const list = make("ol", { class: "operations", "aria-label": "History of the profile" });
    for (const edit of edits) list.append(make("li", {}, provenance(edit), make("p", {}, edit.core)));
    const times = edits.length === 1 ? "edited once" : `edited ${edits.length} times`;
    const summary = make("summary", {}, `Profile (${times}) `, edits.at(-1).core);
    return make("details", { class: "profile" }, summary, list);
  }

  system(name, result) {
    const heading = make("h4", {}, `${name}: `, make("span", { class: result.state }, result.state));
    const section = make("section", { "data-system": name, "aria-label": name }, heading);
    if (result.answer === null) return section;
    const nothing = result.outcome === "ok" ? "nothing" : `${result.outcome}: ${result.message}`;
    section.append(facts([
      ["Answer", result.answer || nothing],
      [this.board.metric, result.f1 === null ? null : result.f1.toFixed(3)],
      ...Object.entries(result.verdicts),
      ["Tokens", result.tokens === null ? null : result.tokens.toLocaleString("en")],
      ["Error type", result.fault],
    ]));
    if (result.shown === null) {
      section.append(make("p", { class: "quiet" }, "Shown to the reader: not recorded"));
      return section;
    }
    const bank = this.bank(name);
    if (this.question.evidence.length) section.append(this.evidence(result, bank));
    section.append(this.shown(result, bank));
    return section;
  }

  render() {
    const q = this.question;
    const article = [make("h3", { tabindex: "-1" }, q.text), facts([
      ["Gold answer", q.gold], ["Category", q.category], ["Conversation", q.conversation], ["Asked", q.asked],
    ])];
    if (!this.talk.isWhole) {
      article.push(make("p", { class: "warning" }, "The page shows only the evidence turns of this conversation."));
    }
    if (q.evidence.length) {
      article.push(make("h4", {}, "Evidence"), make("ol", { id: "evidence" }, ...q.evidence.map((id) => {
        const turn = this.turn(id, "li");
        turn.classList.add("evidence");
        return turn;
      })));
    }
    this.board.systems.forEach((name, place) => {
      const result = q.results[place];
      if (result) article.push(this.system(name, result));
    });
    return article;
  }
}

function provenance(operation) {
  const where = operation.session_id ? ` in ${operation.session_id}` : "";
  const why = operation.reason ? `: ${operation.reason}` : "";
  const details = ` in v${operation.version} by ${operation.actor}${where}${why}`;
  return make("p", {}, make("strong", {}, operation.kind), details);
}

const line = (memory) => (memory.happened_at ? `[${memory.happened_at}] ${memory.text}` : memory.text);

function facts(pairs) {
  const list = make("dl", {});
  for (const [term, value] of pairs) {
    if (value !== null) list.append(make("dt", {}, term), make("dd", {}, String(value)));
  }
  return list;
}

// -- the list and its filters ----------------------------------------------------------------------

const same = (values) => values.map((value) => [value, value]);

class Browser {
  constructor(boards) {
    this.boards = boards;
    this.chosen = null;
    this.limit = PAGE;
    this.inputs = {};
    at("filters").append(
      this.select("board", "Dataset", boards.map((board, place) => [place, board.name]), null),
      this.select("system", "System", [], "any"),
      this.select("state", "Answer", same(["right", "wrong", "unscored", "failed", "missing"]), "any"),
      this.select("fault", "Error type", [], "any"),
      this.select("category", "Category", [], "all"),
      this.select("conversation", "Conversation", [], "all"),
      this.field("words", "Search words"),
    );
    at("filters").addEventListener("submit", (event) => event.preventDefault());
    at("more").addEventListener("click", () => { this.limit += PAGE; this.list(); });
    at("questions").addEventListener("keydown", (event) => this.key(event)); // nowhere else: WCAG 2.1.4
    window.addEventListener("hashchange", () => this.follow());
    document.addEventListener("click", (event) => this.reopen(event));
    this.fill();
    this.follow();
  }

  get board() { return this.boards[this.inputs.board.value || 0]; }

  field(name, label) {
    this.inputs[name] = make("input", { type: "search", name, autocomplete: "off" });
    this.inputs[name].addEventListener("input", () => this.refresh());
    return make("label", {}, label, this.inputs[name]);
  }

  select(name, label, options, any) {
    this.inputs[name] = make("select", { name, "data-any": any });
    this.options(name, options);
    this.inputs[name].addEventListener("change", () => (name === "board" ? this.fill() : this.refresh()));
    return make("label", {}, label, this.inputs[name]);
  }

  options(name, options) {
    const any = this.inputs[name].dataset.any;
    const all = any === undefined ? options : [["", any], ...options];
    this.inputs[name].replaceChildren(...all.map(([value, text]) => make("option", { value }, text)));
  }

  fill() {
    const { questions, systems } = this.board;
    const distinct = (values) => same([...new Set(values)].filter((value) => value !== null));
    const faults = questions.flatMap((question) => question.results.map((result) => result?.fault ?? null));
    this.options("system", systems.map((name, place) => [place, name]));
    this.options("fault", distinct(faults));
    this.options("category", distinct(questions.map((question) => question.category)));
    this.options("conversation", distinct(questions.map((question) => question.conversation)));
    this.inputs.state.value = this.inputs.words.value = "";
    this.refresh();
  }

  refresh() {
    this.limit = PAGE;
    this.list();
  }

  found() {
    const { system, state, fault, category, conversation, words } = this.inputs;
    const wanted = words.value.toLowerCase().split(/\s+/).filter(Boolean);
    return this.board.questions.filter((question) => {
      const results = system.value === "" ? question.results : [question.results[system.value]];
      const hasState = (result) => !state.value || result.state === state.value;
      const hasFault = (result) => !fault.value || result.fault === fault.value;
      const text = `${question.text} ${question.gold} ${question.id}`.toLowerCase();
      return (!category.value || question.category === category.value)
        && (!conversation.value || question.conversation === conversation.value)
        && results.some((result) => result && hasState(result) && hasFault(result))
        && wanted.every((word) => text.includes(word));
    });
  }

  list() {
    const found = this.found();
    const all = this.board.questions.length.toLocaleString("en");
    at("count").textContent = `${found.length.toLocaleString("en")} of ${all} questions`;
    at("list").replaceChildren(...found.slice(0, this.limit).map((question) => {
      const named = this.board.systems.map((name, place) => [name, question.results[place]?.state]);
      const states = named.filter(([, state]) => state).map(([name, state]) => `${name} ${state}`);
      const about = make("small", {}, [question.category, ...states].join(", "));
      const button = make("button", { type: "button", "data-question": question.id }, question.text, about);
      button.addEventListener("click", () => this.open(question));
      return make("li", {}, button);
    }));
    at("more").hidden = found.length <= this.limit;
    this.mark();
  }

  mark() {
    for (const button of at("list").querySelectorAll("button")) {
      if (button.dataset.question === this.chosen?.id) button.setAttribute("aria-current", "true");
      else button.removeAttribute("aria-current");
    }
  }

  open(question) {
    this.chosen = question;
    const place = this.found().indexOf(question);
    if (place < this.limit) {
      this.mark();
    } else {
      this.limit = PAGE * Math.ceil((place + 1) / PAGE);
      this.list();
    }
    this.scroll();
    at("question").replaceChildren(...new View(this.board, question).render());
    const address = `#question=${this.boards.indexOf(this.board)}/${encodeURIComponent(question.id)}`;
    history.replaceState(null, "", address);
    at("question").querySelector("h3").focus();
  }

  scroll() { // scrollIntoView would move the page too
    const list = at("list"), button = list.querySelector("[aria-current]");
    if (!button) return;
    const [item, box] = [button, list].map((element) => element.getBoundingClientRect());
    list.scrollTop += Math.min(item.top - box.top, 0) + Math.max(item.bottom - box.bottom, 0);
  }

  named(address) {
    const match = /^#question=(\d+)\/(.+)$/.exec(address);
    const id = match && decoded(match[2]);
    const question = match && this.boards[match[1]]?.questions.find((candidate) => candidate.id === id);
    return question ? { board: match[1], question } : null;
  }

  follow() {
    const target = this.named(location.hash);
    if (target && target.question !== this.chosen) this.go(target); // the event may come after it is open
  }

  reopen(event) { // a link to the page's own address is no change of it, so there is no event to follow
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    const target = this.named(event.target.closest("a")?.hash);
    if (target && target.question === this.chosen) this.go(target);
  }

  go({ board, question }) {
    this.inputs.board.value = board;
    this.fill();
    this.open(question);
  }

  key(event) {
    const isTyping = event.target.closest("input, select, textarea");
    if (isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "/") {
      event.preventDefault();
      this.inputs.words.focus();
    } else if (event.key === "j" || event.key === "k") {
      const found = this.found();
      const next = found[found.indexOf(this.chosen) + (event.key === "j" ? 1 : -1)];
      if (next) this.open(next);
    }
  }
}

unpacked().then((boards) => {
  new Browser(boards);
  document.documentElement.dataset.ready = "true";
});
