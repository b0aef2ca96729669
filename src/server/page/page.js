// The page of `kvasir serve`: conversations over /v1/sessions. What models and users write is only ever set as text.
import {$, act, button, call, copyText, count, element, errorText, GONE, hasKey, keep, kept, request, setKey,
  setOnUnauthorized, showError, showNote} from "./page-parts.js";
import {watchCache} from "./page-cache.js";
import {Rendered} from "./page-markdown.js";
import {copyReceipts, dropReceipts, keepReceipt, moveReceipts, receiptsOf, receiptView} from "./page-receipts.js";

const SETTINGS = "kvasir-settings";
const MOST_LISTED = 300;
const NAMES = {user: "You", assistant: "Answer", tool: "Result of a tool", system: "System text", developer: "System text"};

let current = null;    // the id of the session, null for an empty conversation
let messages = [];     // of it, as the server has them
let running = null;    // an AbortController while an answer comes
let follows = true;    // the end of the conversation stays in view
let place = 0;         // else this place of it
let next_system = "";  // of the next conversation that is made
let opens = 0;         // calls of openSession

// What goes on after an `await` names its conversation: another may be open by then.
const session = (id, rest = "") => "v1/sessions/" + id + rest;

// --- the place in the conversation

const scroll = $("scroll");
scroll.onscroll = () => {
  if (scroll.hidden) return;
  place = scroll.scrollTop;
  follows = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 8;
  $("to-end").hidden = follows;
};
scroll.onwheel = (event) => {
  if (event.deltaY < 0) follows = false;
};
function toEnd(always) {
  follows ||= always;
  if (follows) scroll.scrollTop = scroll.scrollHeight;
}
$("to-end").onclick = () => toEnd(true);
new ResizeObserver(() => toEnd(false)).observe(scroll);

// --- the list of conversations

const isOwn = (entry) => entry.origin === "page" || entry.origin === "chat";
const titleOf = (entry) => entry.title || new Date(entry.created * 1000).toLocaleString();
let last_list = "";

function sessionView(entry) {
  const open = button(titleOf(entry), "", () => openSession(entry.id));
  open.title = new Date(entry.created * 1000).toLocaleString();
  if (entry.id === current) open.setAttribute("aria-current", "true");
  const remove = button("×", "Delete conversation " + titleOf(entry), async () => {
    if (!confirm("Delete this conversation, and what the cache holds of it?")) return;
    const opened = opens;
    if (entry.id === current) running?.abort();
    await call("DELETE", session(entry.id));
    dropReceipts(entry.id);
    if (entry.id === current && opens === opened) await openSession(null);
    await listSessions();
  });
  return element("li", {}, open, remove);
}

async function listSessions() {
  const data = [];
  let has_more = true;
  while (has_more && data.length < MOST_LISTED) {
    const after = data.length ? "&after=" + data.at(-1).id : "";
    const page = await call("GET", "v1/sessions?limit=100" + after);
    data.push(...page.data);
    has_more = page.has_more && page.data.length > 0;
  }
  const text = JSON.stringify([current, data.map((entry) => [entry.id, entry.title, entry.messages])]);
  if (text === last_list) return;  // what is focused stays so
  last_list = text;
  const others = data.filter((entry) => !isOwn(entry));
  $("sessions").replaceChildren(...data.filter(isOwn).map(sessionView));
  $("program-sessions").replaceChildren(...others.map(sessionView));
  $("programs").hidden = others.length === 0;
  $("programs").firstElementChild.textContent = "Made by programs (" + others.length + ")";
}

// --- one conversation

async function openSession(id, from_address = false) {
  const opened = ++opens;
  running?.abort();
  const found = id && await call("GET", session(id)).catch((error) => {
    if (error.message !== GONE) throw error;
  });
  if (opens !== opened) return;
  running?.abort();  // begun meanwhile
  const is_gone = id && !found;
  if (is_gone) id = null;
  if (id !== current) $("settings").close();  // it shows the one before
  messages = found?.messages || [];
  current = id;
  history[from_address ? "replaceState" : "pushState"](null, "", id ? "#" + id : location.pathname);
  show("chat");
  showMenu(false);
  showMessages();
  toEnd(true);
  await listSessions();
  if (is_gone) throw new Error(GONE);
}

// Reads and shows a conversation anew; false: another is open.
async function readAgain(id) {
  const now = current === id && (await call("GET", session(id))).messages;
  if (current !== id) return false;
  messages = now;
  showMessages();
  return true;
}

const systemText = () => messages[0] && NAMES[messages[0].role] === NAMES.system ? messages[0].content : "";

function showMessages() {
  const receipts = current ? receiptsOf(current) : {};
  $("welcome").hidden = messages.length > 0;
  $("messages").replaceChildren(...messages.map((message) => messageView(message, receipts[message.index])));
}

function foldView(summary, ...children) {
  return element("details", {className: "fold"}, element("summary", {textContent: summary}), ...children);
}

const callView = ({name, arguments: text}) => foldView("Call of " + name, element("p", {textContent: text}));

// A message as the page shows it; `parts` of the article are what a stream fills.
function messageView(message, receipt) {
  const article = element("article", {className: message.role},
      element("h2", {className: "unseen", textContent: NAMES[message.role] || message.role}));
  const body = element("div", {className: "body"});
  const parts = article.parts = {body};
  if (message.reasoning_content) article.append(foldView("Thoughts", element("p", {textContent: message.reasoning_content})));
  if (message.role === "assistant") {
    parts.text = new Rendered(body);
    if (message.content) parts.text.append(message.content, true);
    article.append(body);
  } else if (message.role === "user") {
    body.textContent = message.content;
    article.append(body);
  } else {
    body.textContent = message.content;
    article.append(foldView(NAMES[message.role], body, actionsView(message, article)));
  }
  for (const one of message.tool_calls || []) article.append(callView(one.function));
  if (receipt) article.append(receiptView(receipt));
  if (message.index !== undefined && !article.querySelector(".actions")) article.append(actionsView(message, article));
  return article;
}

function actionsView(message, article) {
  const {index} = message;
  const action = (name, work) => button(name, name + " message " + index, work);
  const row = element("div", {className: "actions"});
  row.append(button("Copy", "Copy message " + index, (event) => copyText(message.content, event.target)));
  if (message.role === "assistant" && index === messages.length - 1) row.append(action("Regenerate", regenerate));
  row.append(action("Edit", () => editMessage(message, article)), action("Fork", async () => {
    const id = current, opened = opens;
    const made = await call("POST", session(id, "/fork"), {messages: index + 1});
    copyReceipts(id, made.id, index + 1);
    if (opens !== opened) return listSessions();
    await openSession(made.id);
    if (current !== made.id) return;
    showNote("This is a copy of the conversation up to here.");
    $("text").focus();
  }), action("Forget", async () => {
    if (!confirm("Take this message out, and erase what the cache holds of it and of all after it?")) return;
    const id = current;
    const gone = await call("POST", session(id, "/forget"), {index});
    moveReceipts(id, index);
    if (await readAgain(id)) focusOn(index);
    await listSessions();
    if (current !== id) return;
    showNote("Forgotten: erased " + count(gone.erased_blocks, "block") + " with " + count(gone.erased_tokens, "token") +
      (gone.kept_shared ? "; kept " + count(gone.kept_shared, "block") + " that another conversation contains." : "."));
  }));
  return row;
}

// Where somebody goes on by keyboard after the messages were shown anew.
function focusOn(index) {
  ($("messages").querySelector("[aria-label='Edit message " + index + "']") || $("text")).focus();
}

function editMessage(message, article) {
  const area = element("textarea", {value: message.content, rows: Math.min(12, message.content.split("\n").length + 1)});
  area.setAttribute("aria-label", "New text of message " + message.index);
  const {body} = article.parts;
  const form = element("form", {className: "edit"}, area, element("div", {className: "row"},
      button("Cancel", "", () => {
        form.replaceWith(body);
        focusOn(message.index);
      }), element("button", {className: "main", textContent: message.role === "user" ? "Send" : "Save"})));
  form.onsubmit = act(async () => {
    const id = current, is_question = message.role === "user";
    await call("PUT", session(id, "/messages/" + message.index), {content: area.value, keep_later: !is_question});
    dropReceipts(id, message.index + (is_question ? 0 : 1));
    if (!await readAgain(id)) return;
    focusOn(message.index);
    if (is_question) await generate({});
  });
  area.onkeydown = (event) => {
    if (event.key === "Escape") form.querySelector("button").click();
    sendOnEnter(event, form);
  };
  body.replaceWith(form);
  area.focus();
}

async function regenerate() {
  const id = current, index = messages.length - 1;
  await call("POST", session(id, "/truncate"), {messages: index});
  dropReceipts(id, index);
  if (current !== id) return;
  messages = messages.slice(0, index);  // one read anew lacks it already
  $("messages").children[index]?.remove();
  $("text").focus();
  await generate({});
}

// --- answers

// Calls take(event) with each event of a stream of server-sent events.
async function readEvents(response, take) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const {done, value} = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data: ") && line !== "data: [DONE]") take(JSON.parse(line.slice(6)));
    }
  }
}

// Shows how much of a long prompt is computed, until the first token is there.
async function watchPrompt(answer) {
  for (const start = performance.now(); !answer.begun; await new Promise((go) => setTimeout(go, 300))) {
    if (performance.now() - start < 500) continue;
    const {data} = await call("GET", "v1/cache/sequences");
    const own = data.find((sequence) => sequence.state !== "decode" && sequence.tokens > 0);
    if (!own || answer.begun) continue;
    $("progress").hidden = false;
    $("progress-text").textContent = own.state + ": " + own.computed + " of " + own.tokens + " tokens";
    $("progress-bar").value = own.computed / own.tokens;
  }
}

// An answer that comes: what it has said is drawn once a frame, and takes a fifth of the time at most.
class ComingAnswer {
  constructor() {
    this.article = messageView({role: "assistant", content: ""});
    this.article.classList.add("coming");
    this.text = this.thought = "";
    this.begun = this.waits = false;
    this.calls = [];
  }

  take({content, reasoning_content, tool_calls}) {
    if (!content && !reasoning_content && !tool_calls) return;
    this.begun = true;
    $("progress").hidden = true;
    this.text += content || "";
    this.thought += reasoning_content || "";
    for (const {index, function: one} of tool_calls || []) {
      const made = this.calls[index] ||= {name: "", arguments: ""};
      made.name += one?.name || "";
      made.arguments += one?.arguments || "";
    }
    if (this.waits) return;
    this.waits = true;
    setTimeout(() => requestAnimationFrame(() => this.draw()), this.rest_ms || 0);
  }

  draw(is_end = false) {
    this.waits = false;
    const start = performance.now();
    const {parts} = this.article;
    if (this.thought) {
      if (!parts.thought) {
        parts.thought = document.createTextNode("");
        parts.fold = foldView("Thinking …", element("p", {}, parts.thought));
        parts.body.before(parts.fold);
      }
      parts.thought.appendData(this.thought);
      this.thought = "";
    }
    if (parts.fold && (this.text || is_end)) parts.fold.firstChild.textContent = "Thoughts";
    if (this.text || is_end) parts.text.append(this.text, is_end);
    this.text = "";
    for (const one of this.calls) {
      if (!one.view) this.article.append(one.view = callView(one));
      one.view.lastChild.textContent = one.arguments;
    }
    toEnd(false);
    const took_ms = performance.now() - start;
    this.rest_ms = took_ms > 8 ? 4 * took_ms : 0;
  }
}

function setRunning(controller) {
  running = controller;
  $("stop").hidden = !controller;
  $("send").hidden = Boolean(controller);
  $("messages").setAttribute("aria-busy", Boolean(controller));
}

// `asked`: the article of a question that the server does not have yet.
async function generate(body, asked = null) {
  const controller = new AbortController();
  setRunning(controller);
  const answer = new ComingAnswer();
  const id = current;
  let receipt = null;
  $("messages").append(answer.article);
  toEnd(true);
  watchPrompt(answer).catch(() => {});
  try {
    const settings = kept(SETTINGS, {});
    const response = await request("POST", session(id, "/generate"), {...settings, ...body, stream: true, keep_partial: true},
        controller.signal);
    await readEvents(response, (event) => {
      if (event.error) throw new Error(errorText(event.error));
      answer.take(event.choices?.[0]?.delta || {});
      if (!event.kvasir) return;
      receipt = event.kvasir;
      keepReceipt(id, event.session.index, receipt);
    });
  } finally {
    answer.begun = true;
    $("progress").hidden = true;
    if (running === controller) setRunning(null);
    if (current === id) await endAnswer(answer, asked, receipt, controller.signal.aborted);
    listSessions().catch(() => {});
  }
}

// Shows what the server has kept of an answer, in the place of what was shown while it came.
async function endAnswer(answer, asked, receipt, was_stopped) {
  answer.article.classList.remove("coming");
  answer.draw(true);
  const id = current, before = messages.length;
  const showOld = (is_asked_again) => {
    if (is_asked_again && !$("text").value) $("text").value = asked.parts.body.textContent;
    fitText();
    showMessages();
  };
  let now = [];
  // The server keeps what came before a stop once it has seen the hang-up.
  for (let tries = was_stopped && answer.article.parts.text.text ? 20 : 1; tries > 0; --tries) {
    try {
      now = (await call("GET", session(id))).messages;
    } catch (error) {  // the server is gone: what came of the answer stays in view
      if (current === id && !answer.article.parts.text.text && !answer.article.parts.thought) showOld(asked);
      throw error;
    }
    if (current !== id) return;
    if (now.length > before || tries === 1) break;
    await new Promise((go) => setTimeout(go, 50));
  }
  messages = now;
  if (!answer.article.isConnected) return showMessages();  // shown anew meanwhile
  const added = messages.length - before;
  if (added !== (asked ? 2 : 1)) return showOld(asked && added < 1);
  if (asked) asked.append(actionsView(messages.at(-2), asked));
  for (const old of $("messages").querySelectorAll("[aria-label^=Regenerate]")) old.remove();
  if (receipt) answer.article.append(receiptView(receipt));
  answer.article.append(actionsView(messages.at(-1), answer.article));
  toEnd(false);
}

$("say").onsubmit = act(async () => {
  const text = $("text").value;
  if (!text.trim() || running) return;
  $("text").value = "";
  fitText();
  let made = null;  // for this question
  if (!current) {
    const opened = opens;
    const giveBack = () => $("text").value ||= text;
    try {
      made = await call("POST", "v1/sessions", {origin: "page", ...next_system && {system: next_system}});
    } catch (error) {
      giveBack();
      throw error;
    }
    if (current || opens !== opened) {
      giveBack();
      await call("DELETE", session(made.id));
      return listSessions();
    }
    current = made.id;
    history.pushState(null, "", "#" + current);
    if (!await readAgain(made.id)) return giveBack();
  }
  $("welcome").hidden = true;
  const asked = messageView({role: "user", content: text});
  $("messages").append(asked);
  try {
    await generate({messages: [{role: "user", content: text}]}, asked);
  } catch (error) {
    const may_run = error.name === "AbortError" || error instanceof TypeError;  // the server may not know of it yet
    if (made && !may_run) await removeEmpty(made.id).catch(() => {});
    throw error;
  }
});

// Removes a conversation whose first question was refused. The server keeps the question and what came of an answer that
// failed in its middle: `messages` may be older.
async function removeEmpty(id) {
  const opened = opens, has_question = (all) => all.some((message) => message.role === "user");
  const is_empty = () => current === id && !has_question(messages);
  if (!is_empty() || running) return;
  if (has_question((await call("GET", session(id))).messages)) return listSessions();
  if (!is_empty() || running) return;
  await call("DELETE", session(id));
  if (is_empty() && opens === opened) {
    current = null;
    messages = [];
    history.replaceState(null, "", location.pathname);
    showMessages();
  }
  await listSessions();
}

function fitText() {
  $("text").style.height = "auto";
  $("text").style.height = $("text").scrollHeight + "px";
}
$("text").oninput = fitText;
function sendOnEnter(event, form) {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    form.requestSubmit();
  }
}
$("text").onkeydown = (event) => sendOnEnter(event, $("say"));
document.onkeydown = (event) => {
  if (event.key !== "Escape" || $("settings").open) return;
  running?.abort();
  showMenu(false);
};
$("stop").onclick = () => {
  running?.abort();
  $("text").focus();
};
$("close-error").onclick = () => {
  showError("");
  $("text").focus();
};
$("messages").onclick = (event) => {
  if (!event.target.classList.contains("copy")) return;
  act(() => copyText(event.target.closest(".code").lastChild.textContent, event.target))();
};

// --- views and settings

function showMenu(is_open) {
  document.querySelector("main").inert = is_open;
  document.body.classList.toggle("menu", is_open);
  $("menu").setAttribute("aria-expanded", is_open);
}
$("menu").onclick = () => showMenu(!document.body.classList.contains("menu"));

function show(view) {
  for (const name of ["scroll", "say", "text-help"]) $(name).hidden = view !== "chat";
  $("to-end").hidden = follows || view !== "chat";
  scroll.scrollTop = place;
  toEnd(false);
  $("cache").hidden = view !== "cache";
  $("show-cache").setAttribute("aria-pressed", view === "cache");
  watchCache(view === "cache");
}
$("show-cache").onclick = () => show($("cache").hidden ? "cache" : "chat");

$("new").onclick = act(async () => {
  next_system = "";
  await openSession(null);
  $("text").focus();
});

function openSettings(focus = $("system")) {
  const {temperature, max_tokens} = kept(SETTINGS, {});
  $("system").value = current ? systemText() : next_system;
  $("temperature").value = temperature ?? "";
  $("max-tokens").value = max_tokens ?? "";
  $("settings-error").hidden = true;
  $("key").placeholder = hasKey() ? "one is in use" : "";
  if (!$("settings").open) $("settings").showModal();
  focus.focus();
}
$("show-settings").onclick = () => openSettings();
$("cancel").onclick = () => $("settings").close();
$("settings-form").onsubmit = async (event) => {
  event.preventDefault();
  const number = (name) => $(name).value === "" ? undefined : Number($(name).value);
  keep(SETTINGS, {temperature: number("temperature"), max_tokens: number("max-tokens")});
  const had_key = $("key").value !== "";
  if (had_key) setKey($("key").value);
  $("key").value = "";
  const id = current;
  try {
    if (!id) {
      next_system = $("system").value.trim();
    } else if ($("system").value !== systemText()) {
      await call("PUT", session(id, "/system"), {content: $("system").value});
      dropReceipts(id);
      await readAgain(id);
    }
    $("settings").close();
    if (had_key) await start();
    $("text").focus();
  } catch (error) {
    $("settings-error").textContent = error.message;
    $("settings-error").hidden = false;
  }
};
setOnUnauthorized(() => openSettings($("key")));

const fromAddress = () => /^#(sess_[0-9a-f]{32})$/.exec(location.hash)?.[1] || null;
onpopstate = act(() => openSession(fromAddress(), true));

const start = act(async () => {
  const models = await call("GET", "v1/models");
  $("model").textContent = models.data[0].id;
  const id = fromAddress();
  await (id ? openSession(id, true).finally(listSessions) : listSessions());
});
start();
$("text").focus();
