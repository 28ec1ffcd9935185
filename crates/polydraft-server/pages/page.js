// Page of `polydraft serve`: the conversation. `steps.js` draws the steps of decoding.
// Markdown is rendered by marked and cleaned by DOMPurify, both served by this program.
'use strict';

const $ = id => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const svg = ['svg', 'g', 'rect', 'path', 'text', 'title'].includes(name);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name)
    : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const state = {
  messages: [], steps: [], shown: -1, node: null, live: true, request: null, models: [],
  speeds: {}, conversation: null,
};

// Markdown.

// Pictures would be loaded from other servers, and forms look like parts of this page.
const CLEAN = {
  USE_PROFILES: { html: true }, RETURN_TRUSTED_TYPE: true,
  FORBID_TAGS: ['img', 'picture', 'video', 'audio', 'form', 'input', 'button', 'textarea',
    'select', 'style', 'dialog'],
  FORBID_ATTR: ['style', 'class', 'id', 'name'],
};
DOMPurify.addHook('afterSanitizeAttributes', element => {
  if (element.tagName !== 'A') return;
  element.setAttribute('target', '_blank');
  element.setAttribute('rel', 'noopener noreferrer');
});
const formatted = text =>
  DOMPurify.sanitize(marked.parse(text, { gfm: true, breaks: true }), CLEAN);

// Requests.

const headers = () => {
  const key = $('key').value;
  return { 'Content-Type': 'application/json', ...(key ? { Authorization: 'Bearer ' + key } : {}) };
};
const isChat = () => $('mode').value === 'chat';
const selectedModel = () => state.models.find(({ id }) => id === $('models').value);
const SAMPLING = ['temperature', 'top_p', 'top_k', 'min_p'];

/// Parameters from the settings. If one sampling setting is given, the others are sent as well:
/// what the page shows is what applies.
function givenParams() {
  const params = {};
  for (const field of $('settings').querySelectorAll('input[name], select[name]')) {
    if (field.value === '') continue;
    params[field.name] = field.type === 'number' ? Number(field.value) : field.value;
  }
  if (SAMPLING.some(name => name in params)) {
    const defaults = selectedModel()?.defaults?.[isChat() ? 'chat' : 'completions'] ?? {};
    for (const name of SAMPLING) params[name] ??= defaults[name];
  }
  return params;
}

function requestBody() {
  const { verifier, tree, ...params } = givenParams();
  const body = { ...params, stream: true, stream_options: { include_usage: true }, steps: 8 };
  if (verifier === 'none' || $('decoding').value === 'plain') body.speculation = 'none';
  else if (verifier || tree) body.speculation = { ...(verifier && { verifier }), ...(tree && { tree }) };
  if ($('models').value) body.model = $('models').value;
  return body;
}

/// An error with a message for people.
const problem = message => Object.assign(new Error(message), { isExplained: true });

/// Sends a request and returns its answer, or throws an error in words.
async function ask(path, options) {
  let answer;
  try {
    answer = await fetch(path, { headers: headers(), ...options });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw problem('The server cannot be reached. Check that it is still running, and try again.');
  }
  if (answer.ok) return answer;
  const reported = await answer.json().then(({ error }) => error?.message, () => undefined);
  if (answer.status === 401) {
    $('settings').open = true;
    throw problem('This server requires an API key: enter it in the settings.');
  }
  throw problem(reported ?? `The server answered with status ${answer.status}.`);
}

/// Parsed objects of an event stream.
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const data = event.split('\n').filter(line => line.startsWith('data: '))
        .map(line => line.slice(6)).join('');
      if (data && data !== '[DONE]') yield JSON.parse(data);
    }
  }
}

/// Sends the prompt.
async function send() {
  if (state.request) { state.request.abort(); return; }
  const prompt = $('prompt').value;
  if (!prompt) return;
  if (isChat()) {
    state.messages.push({ role: 'user', content: prompt });
    addMessage(state.messages.at(-1));
    $('prompt').value = '';
    await decode({ role: 'assistant', content: '' }, prompt);
  } else {
    await decode({ role: 'text', content: prompt, start: prompt.length });
  }
}

/// Decodes a message to its end, or to the limit: new ones, and those that were cut off. `prompt`
/// is returned to its field if no answer comes.
async function decode(message, prompt) {
  const body = requestBody(), chat = message.role === 'assistant', continues = message.cut;
  if (chat) {
    const messages = state.messages.map(({ role, content }) => ({ role, content }));
    Object.assign(body, { messages }, continues && { continue_final_message: true });
  } else {
    body.prompt = message.content;
  }
  if (chat && !continues) state.messages.push(message);
  delete message.cut;
  const view = continues ? message.view : addMessage(message);
  view.querySelector('.end')?.remove();
  const request = new AbortController();
  Object.assign(state, { steps: [], shown: -1, node: null, live: true, request });
  for (const span of $('messages').querySelectorAll('span[data-step]')) delete span.dataset.step;
  $('send').textContent = 'Stop';
  $('messages').setAttribute('aria-busy', 'true');
  const before = message.content.length, timing = { tokens: 0 };
  try {
    const path = chat ? 'v1/chat/completions' : 'v1/completions';
    const { signal } = request;
    const answer = await ask(path, { method: 'POST', body: JSON.stringify(body), signal });
    let finish, usage;
    for await (const chunk of chunks(answer.body)) {
      if (chunk.error) throw problem(chunk.error.message);
      const choice = chunk.choices[0];
      finish ??= choice?.finish_reason;
      usage = chunk.usage ?? usage;
      take(message, view, chunk, choice, timing);
    }
    if (!finish) throw problem('The connection broke off before the end of the answer.');
    if (finish === 'length') message.cut = reasonOfCut(body, usage);
    if (timing.tokens) {
      const decoding = body.speculation === 'none' ? 'plain' : 'speculative';
      state.speeds[decoding] = 1000 * timing.tokens / (performance.now() - timing.start);
    }
    drawSpeeds();
  } catch (error) {
    const stopped = error.name === 'AbortError';
    if (message.content.length > before) message.cut = stopped ? 'stopped' : 'broken off';
    if (!stopped) {
      const lost = 'The connection broke off before the end of the answer.';
      showError(error.isExplained ? error.message : lost);
    }
    if (chat && !message.content && !message.reasoning) withdraw(message, prompt);
  }
  if (state.live) show(mostInteresting(), false);
  draw(message);
  state.request = null;
  $('send').textContent = 'Send';
  $('messages').removeAttribute('aria-busy');
  saveConversation();
  // A model that was loaded by this request is described only now.
  if (!selectedModel()?.defaults) loadModels().catch(() => {});
}

/// Removes a message without an answer, and returns the prompt to its field.
function withdraw(message, prompt) {
  message.view.remove();
  state.messages = state.messages.filter(other => other !== message);
  if (prompt === undefined) return;
  state.messages.pop()?.view.remove();
  $('prompt').value ||= prompt;
}

/// Adds a chunk's output and steps to a message.
function take(message, view, chunk, choice, timing) {
  const content = choice?.delta?.content ?? choice?.text ?? '';
  const reasoning = choice?.delta?.reasoning_content ?? '';
  message.content += content;
  if (reasoning) message.reasoning = (message.reasoning ?? '') + reasoning;
  const before = state.steps.length;
  state.steps.push(...(chunk.steps ?? []));
  // The first step comes with the prefill: start timing after it.
  timing.start ??= chunk.steps ? performance.now() : undefined;
  if (before) for (const step of chunk.steps ?? []) timing.tokens += step.accepted.length + 1;
  if (content) {
    const step = Math.max(before, state.steps.length - 1);
    const span = make('span', { 'data-step': step }, content);
    span.onclick = () => span.dataset.step && show(Number(span.dataset.step), false);
    view.querySelector('.tokens').append(span);
  }
  if (content || reasoning) drawSoon(message);
  if (state.live && state.steps.length > before) show(state.steps.length - 1, true);
}

/// Describes a limit that ended an answer.
function reasonOfCut(body, usage) {
  const context = selectedModel()?.max_model_len;
  const used = usage ? usage.prompt_tokens + usage.completion_tokens : 0;
  if (context && used >= context) return `the context of ${context} tokens is full`;
  return body.max_tokens ? `after the limit of ${body.max_tokens} tokens`
    : `after ${usage?.completion_tokens ?? 'the maximum number of'} tokens`;
}

// Display of messages.

const isAtEnd = () => {
  const view = $('messages');
  return view.scrollHeight - view.scrollTop - view.clientHeight < 60;
};
function scrollToEnd() {
  $('messages').scrollTop = $('messages').scrollHeight;
  // On narrow screens the document scrolls.
  if (matchMedia('(max-width: 60rem)').matches) $('messages').lastElementChild?.scrollIntoView({ block: 'end' });
}

function addMessage(message) {
  const view = make('div', { class: 'message ' + message.role });
  if (message.role === 'user') view.append(message.content);
  else view.append(make('div', { class: 'reasoning', hidden: '' }),
    make('div', { class: 'formatted' }), make('div', { class: 'tokens' }, message.content));
  message.view = view;
  $('messages').append(view);
  draw(message);
  scrollToEnd();
  return view;
}

/// Draws a message at most once per frame.
function drawSoon(message) {
  message.waits ??= requestAnimationFrame(() => { delete message.waits; draw(message); });
}

function draw(message) {
  const { view, role, content, reasoning, cut } = message, follows = isAtEnd();
  if (role === 'user' || !view.isConnected) return;
  view.querySelector('.reasoning').hidden = !reasoning;
  view.querySelector('.reasoning').textContent = reasoning ?? '';
  // Texts to complete need not be Markdown.
  if (role === 'assistant') view.querySelector('.formatted').innerHTML = formatted(content);
  view.querySelector('.end')?.remove();
  if (cut) {
    const end = make('div', { class: 'end' }, ['stopped', 'broken off'].includes(cut) ? cut : `cut off: ${cut}`);
    const isLast = role === 'text' || message === state.messages.at(-1);
    const isFull = cut.startsWith('the context');
    // A reasoning cannot be continued by a message that begins with it.
    if (isLast && content && !isFull) {
      const button = make('button', { type: 'button' }, 'go on');
      button.onclick = () => state.request || decode(message);
      end.append(' ', button);
    } else if (!content) {
      end.append(' in the reasoning; set a higher limit and send again');
    }
    view.append(end);
  }
  if (follows) scrollToEnd();
}

function showError(text) {
  $('messages').append(make('div', { class: 'message error', role: 'alert' }, text));
  scrollToEnd();
}

/// Measured speeds. Both are lower than without the display of steps.
function drawSpeeds() {
  const { plain, speculative } = state.speeds;
  const speeds = [['plain', plain], ['speculative', speculative]].filter(([, speed]) => speed)
    .map(([decoding, speed]) => `${decoding} ${speed.toFixed(0)} tokens/s`);
  if (plain && speculative) speeds.push(`${(speculative / plain).toFixed(2)}×`);
  $('speeds').textContent = speeds.join(' · ');
}

// Conversations, stored in this browser.

const STORAGE_KEY = 'polydraft-conversations', OPEN_KEY = 'polydraft-open';
const MAX_CONVERSATIONS = 50;
// Storage may be unavailable; the page works without it.
const load = key => { try { return JSON.parse(localStorage.getItem(key)); } catch { return null; } };
const store = (key, value) => {
  try { localStorage.setItem(key, JSON.stringify(value)); } catch { /* nothing */ }
};
const conversations = () => load(STORAGE_KEY) ?? [];

function saveConversation() {
  if (!state.messages.length) return;
  state.conversation ??= Date.now();
  const messages = state.messages.map(({ role, content, reasoning, cut }) =>
    ({ role, content, reasoning, cut }));
  const others = conversations().filter(({ id }) => id !== state.conversation);
  store(STORAGE_KEY, [{ id: state.conversation, messages }, ...others].slice(0, MAX_CONVERSATIONS));
  store(OPEN_KEY, state.conversation);
  listConversations();
}

function listConversations() {
  const option = ({ id, messages }) =>
    make('option', { value: id }, messages[0]?.content.slice(0, 60) ?? '');
  const none = make('option', { value: '' }, 'new conversation');
  $('conversations').replaceChildren(none, ...conversations().map(option));
  $('conversations').value = state.conversation ?? '';
}

function open(id) {
  state.request?.abort();
  const found = conversations().find(conversation => String(conversation.id) === String(id));
  Object.assign(state, { messages: found?.messages ?? [], conversation: found?.id ?? null });
  store(OPEN_KEY, state.conversation);
  $('messages').replaceChildren();
  for (const message of state.messages) addMessage(message);
  listConversations();
}

// Models and settings.

async function loadModels() {
  const selected = $('models').value;
  state.models = (await (await ask('v1/models')).json()).data;
  $('models').replaceChildren(...state.models.map(({ id }) => make('option', { value: id }, id)));
  if (state.models.some(({ id }) => id === selected)) $('models').value = selected;
  describe();
}

/// Shows the selected model. Its details are known only if it is loaded.
function describe() {
  const speculation = selectedModel()?.speculation;
  $('model').textContent = speculation
    ? `${speculation.draft ?? 'draft'} · ${speculation.verifier} · ${speculation.tree}` : '';
  const verifiers = ['', ...(speculation?.verifiers ?? []), 'none'];
  const name = verifier => verifier || `default (${speculation?.verifier ?? 'none'})`;
  const field = document.querySelector('[name=verifier]'), chosen = field.value;
  field.replaceChildren(...verifiers.map(one => make('option', { value: one }, name(one))));
  if (verifiers.includes(chosen)) field.value = chosen;
  document.querySelector('[name=tree]').placeholder = speculation?.tree ?? 'none';
  describeSampling();
}

/// Shows the sampling settings and the limit that apply to the next answer.
function describeSampling() {
  const model = selectedModel(), defaults = model?.defaults?.[isChat() ? 'chat' : 'completions'];
  const limit = defaults?.max_tokens;
  const context = model?.max_model_len ? `context: ${model.max_model_len}` : 'context';
  for (const name of SAMPLING) {
    const shown = defaults?.[name] === 0 && name !== 'temperature' ? 'off' : defaults?.[name];
    document.querySelector(`[name=${name}]`).placeholder = shown ?? 'default';
  }
  document.querySelector('[name=max_tokens]').placeholder = limit || context;
  if (!defaults) { $('sampling').textContent = ''; return; }
  const { temperature, top_p, top_k, min_p, max_tokens } = { ...defaults, ...givenParams() };
  const parts = [temperature === 0 ? 'greedy' : `temperature ${temperature}`];
  if (temperature !== 0 && top_p !== 1) parts.push(`top-p ${top_p}`);
  if (temperature !== 0 && top_k > 0) parts.push(`top-k ${top_k}`);
  if (temperature !== 0 && min_p > 0) parts.push(`min-p ${min_p}`);
  const most = max_tokens ? `at most ${max_tokens} tokens` : `up to the end of the ${context} tokens`;
  $('sampling').textContent = [...parts, most].join(' · ').replace(': ', ' of ');
}

$('message-form').onsubmit = event => { event.preventDefault(); send(); };
$('prompt').onkeydown = event => {
  if (event.key === 'Enter' && !event.shiftKey && isChat() && !event.isComposing) {
    event.preventDefault();
    if (!state.request) send();
  }
};
$('new').onclick = () => open('');
$('conversations').onchange = () => open($('conversations').value);
$('delete').onclick = () => {
  store(STORAGE_KEY, conversations().filter(({ id }) => id !== state.conversation));
  open('');
};
$('view').onchange = () => $('messages').classList.toggle('raw', $('view').value === 'tokens');
$('key').onchange = () => loadModels().catch(error => { $('model').textContent = error.message; });
$('models').onchange = () => { state.speeds = {}; drawSpeeds(); describe(); };
$('mode').onchange = describeSampling;
$('settings').oninput = describeSampling;
// A reload while an answer is decoded keeps the part that has come.
addEventListener('pagehide', () => {
  const last = state.messages.at(-1);
  if (state.request && last?.role === 'assistant' && last.content) last.cut = 'broken off';
  saveConversation();
});
open(load(OPEN_KEY) ?? '');
loadModels().catch(error => { $('model').textContent = error.message; });
