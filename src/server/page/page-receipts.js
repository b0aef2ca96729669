// Receipts: where the prompt of each answer came from. Their numbers are kept in the browser, so that a reload shows
// them again; they hold no words.
import {count, element, fillBar, keep, kept, legendItem} from "./page-parts.js";

const NAME = "kvasir-receipts";
const MOST = 100;  // conversations
const MISSES = {
  cold: "nothing of it was known",
  diverged: "the text differs from here on",
  evicted: "what comes next was evicted for lack of room",
  disabled: "the cache was not used",
  pool_full: "requests that run use all blocks",
  window: "the model's window was not kept up to here",
  identity_changed: "it was computed by another model or format",
  rope_changed: "the length crossed the model's rotation limit",
  template_rewrote: "the template writes an old turn otherwise",
  retokenized: "the same text has other tokens",
  overtaken: "computing was quicker than loading",
  unreadable: "the disk could not be read",
  remote_down: "the store of the fleet stopped to answer",
};
export const SOURCES = {pool: "from memory", partial: "from a part of a block", disk: "from disk",
  remote: "from the fleet", computed: "computed"};

// Changes the receipts of a conversation: {index of the answer: receipt}.
function change(id, work) {
  const all = kept(NAME, {});
  const own = work({...all[id]});
  delete all[id];
  if (own && Object.keys(own).length > 0) all[id] = own;
  for (const old of Object.keys(all).slice(0, -MOST)) delete all[old];
  keep(NAME, all);
}

const where = (own, is_kept) => Object.fromEntries(Object.entries(own).filter(([index]) => is_kept(Number(index))));

export const receiptsOf = (id) => kept(NAME, {})[id] || {};
export const dropReceipts = (id, from = 0) => change(id, (own) => where(own, (index) => index < from));
export const copyReceipts = (id, to, count) => change(to, () => where(receiptsOf(id), (index) => index < count));

export function keepReceipt(id, index, {prompt_tokens, computed, reused, ttft_ms, tpot_ms, miss}) {
  change(id, (own) => ({...own, [index]: {prompt_tokens, computed, reused, ttft_ms, tpot_ms, miss}}));
}

// Message `gone` was taken out: those after it have an index less.
export function moveReceipts(id, gone) {
  change(id, (own) => Object.fromEntries(Object.entries(where(own, (index) => index !== gone)).map(
      ([index, receipt]) => [index > gone ? index - 1 : index, receipt])));
}

export function receiptView(receipt) {
  const amounts = {...receipt.reused, computed: receipt.computed};
  const parts = Object.keys(SOURCES).filter((name) => amounts[name] > 0).map((name) => [name, amounts[name]]);
  const words = parts.map(([name, amount]) => amount + " " + SOURCES[name]);
  const bar = fillBar(element("div", {className: "bar"}), parts, receipt.prompt_tokens);
  bar.setAttribute("aria-label", "Prompt of " + count(receipt.prompt_tokens, "token") + ": " + words.join(", "));
  const legend = element("ul", {className: "legend"}, element("li", {textContent: count(receipt.prompt_tokens, "token")}),
      ...parts.map(([name], i) => legendItem(name, words[i])),
      element("li", {textContent: "first word after " + duration(receipt.ttft_ms)}));
  if (receipt.tpot_ms > 0) legend.append(element("li", {textContent: Math.round(1000 / receipt.tpot_ms) + " tokens/s"}));
  const made = element("div", {className: "receipt"}, bar, legend);
  if (receipt.miss) {
    const {at_token, message_index, reason} = receipt.miss;
    const place = message_index === null ? "" : " (message " + message_index + ")";
    made.append(element("p", {textContent: "Not reused from token " + at_token + place + ": " +
        (MISSES[reason] || reason) + "."}));
  }
  return made;
}

const duration = (ms) => ms < 10 ? ms.toFixed(1) + " ms" : ms < 1000 ? Math.round(ms) + " ms" : (ms / 1000).toFixed(1) + " s";
