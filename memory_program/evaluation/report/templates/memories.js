// The page of a memory server. Texts come from conversations and models, so they are only ever set as text.

const API = "/memory/v1/";
let cursor = null, asked = 0;

async function call(route, params = {}, content = null) {
  const headers = {}, token = at("token").value.trim();
  if (token) headers["X-Memory-Token"] = token;
  if (content !== null) headers["Content-Type"] = "application/json";
  const method = content === null ? "GET" : "POST", body = content === null ? undefined : JSON.stringify(content);
  const response = await fetch(`${API}${route}?${new URLSearchParams(params)}`, { method, headers, body });
  const answer = await response.json();
  if (!response.ok) throw new Error(answer.detail);
  return answer;
}

const namespace = () => ({ namespace: at("namespace").value });

// every error is shown, and the next success takes it away
const shown = (action) => async (...given) => {
  try {
    await action(...given);
    at("problem").textContent = "";
  } catch (error) {
    at("problem").textContent = error.message;
  }
  document.documentElement.dataset.ready = "";
};

// -- the list ------------------------------------------------------------------------------------------

function addItem(id, text, ...facts) {
  const button = make("button", { type: "button" }, text, make("small", {}, facts.filter(Boolean).join(" · ")));
  button.addEventListener("click", shown(async () => {
    for (const other of at("list").querySelectorAll("[aria-current]")) other.removeAttribute("aria-current");
    button.setAttribute("aria-current", "true");
    await showMemory(id);
  }));
  at("list").append(make("li", {}, button));
}

async function listMemories(isMore = false) {
  const query = at("search").value.trim(), mine = ++asked;
  const isLate = () => mine !== asked; // a later search was typed meanwhile
  if (!at("namespace").value) return;
  const clear = () => !isMore && [at("list"), at("memory")].forEach((one) => one.replaceChildren());
  if (query) {
    const found = await call("search", { ...namespace(), query, limit: 50 });
    if (isLate()) return;
    clear();
    for (const hit of found.items) {
      if (hit.kind === null) at("list").append(make("li", {}, `${hit.text} (not written yet)`));
      else addItem(hit.item_id, hit.text, hit.item_id, hit.kind, hit.happened_at);
    }
    at("more").hidden = true;
    at("status").textContent = `${found.items.length} found`;
    return;
  }
  const page = await call("memories", { ...namespace(), ...(isMore ? { cursor } : {}) });
  const size = await call("namespace", namespace());
  if (isLate()) return;
  clear();
  for (const one of page.items) addItem(one.memory_id, one.text, one.memory_id, one.kind, one.happened_at);
  cursor = page.next_cursor;
  at("more").hidden = cursor === null;
  at("status").textContent = `${size.memories} memories at version ${size.version}, ${size.sessions} sessions, `
    + `${size.waiting} turns not written yet`;
}

// -- one memory ----------------------------------------------------------------------------------------

function operationItem(operation, texts) {
  const by = `v${operation.version} ${operation.kind} by ${operation.actor}`;
  const where = operation.session_id ? ` in ${operation.session_id}` : "";
  return make("li", {},
    make("p", {}, `${by}${where}${operation.reason ? `: ${operation.reason}` : ""}`),
    ...operation.superseded.map((id) => make("p", { class: "gone" }, `${id} ${texts.get(id) ?? ""}`)),
    ...operation.created.map((memory) => make("p", {}, `${memory.memory_id} ${memory.text}`, held(memory))));
}

async function showMemory(id) {
  const [history, sources] = await Promise.all(
    [call(`memories/${id}/history`, { ...namespace(), limit: 200 }), call(`memories/${id}/sources`, namespace())]);
  const created = history.items.flatMap((operation) => operation.created);
  const texts = new Map(created.map((memory) => [memory.memory_id, memory.text]));
  const turns = sources.items.map((turn) => make("li", {}, `${turn.speaker}: ${turn.text} `,
    make("small", {}, `${turn.turn_id}, ${turn.time}${turn.has_own_time ? "" : " (the server's clock)"}`)));
  at("memory").replaceChildren(
    make("h3", {}, texts.get(id) ?? id),
    make("h4", {}, "Sources"), turns.length ? make("ul", {}, ...turns) : make("p", { class: "quiet" }, "none"),
    make("h4", {}, "History"),
    make("ol", { class: "operations" }, ...history.items.map((operation) => operationItem(operation, texts))));
}

// -- changes, and a reader's context ---------------------------------------------------------------------

async function undo() {
  if (!confirm(`Undo the last change of ${at("namespace").value}?`)) return;
  const done = await call("undo", namespace(), {});
  await listMemories();
  at("memory").replaceChildren(make("h3", {}, `Undone: the bank is at version ${done.version}`),
    make("ol", { class: "operations" }, ...done.operations.map((one) => operationItem(one, new Map()))));
}

async function showContext() {
  const query = at("question").value.trim();
  if (!query) return;
  const context = await call("context", { ...namespace(), query });
  const part = (title, text) => [make("h3", {}, title), ...text.split("\n").map((line) => make("p", {}, line))];
  at("context").replaceChildren(
    ...part("Profile", context.profile), ...part("Memories", context.memories),
    ...part("Word for word", context.excerpts), make("p", { class: "quiet" }, `${context.tokens} tokens`));
}

async function listNamespaces() {
  const chosen = at("namespace").value, names = [];
  for (let next = ""; next !== null;) {
    const page = await call("namespaces", { limit: 200, ...(next ? { cursor: next } : {}) });
    names.push(...page.items);
    next = page.next_cursor;
  }
  at("namespace").replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  if (names.includes(chosen)) at("namespace").value = chosen;
  at("undo").disabled = !names.length;
  at("status").textContent = names.length ? "" : "No namespace has memories yet.";
  await listMemories();
}

at("filters").addEventListener("submit", (event) => event.preventDefault());
at("token").addEventListener("change", shown(listNamespaces));
at("namespace").addEventListener("change", shown(() => listMemories()));
at("search").addEventListener("input", shown(() => listMemories()));
at("more").addEventListener("click", shown(() => listMemories(true)));
at("undo").addEventListener("click", shown(undo));
at("ask").addEventListener("submit", (event) => {
  event.preventDefault();
  shown(showContext)();
});
shown(listNamespaces)();
