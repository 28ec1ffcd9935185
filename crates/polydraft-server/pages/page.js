// Page of `polydraft serve`: shows the output as it is decoded, and the draft tree of every step. Uses no libraries and no other server.
'use strict';

const $ = id => document.getElementById(id);
const make = (name, attributes = {}, ...children) => {
  const svg = ['svg', 'g', 'rect', 'path', 'text', 'title'].includes(name);
  const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const state = { messages: [], steps: [], shown: -1, node: null, live: true, request: null, models: [], speeds: {}, conversation: null };

/// Text with visible white space. End tokens have no text.
const visible = text => text === '' ? '⏹' : text.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥');
const short = text => { const seen = [...visible(text)]; return seen.length > 11 ? seen.slice(0, 10).join('') + '…' : seen.join(''); };
const number = p => p >= 0.9995 ? '1' : p >= 0.0995 ? p.toFixed(2).slice(1) : p >= 0.001 ? p.toFixed(3).slice(1) : p > 0 ? '<.001' : '0';
const percent = p => p >= 0.995 ? '100 %' : p >= 0.095 ? Math.round(100 * p) + ' %' : (100 * p).toFixed(1) + ' %';

// Requests.

const headers = () => {
  const key = $('key').value;
  return { 'Content-Type': 'application/json', ...(key ? { Authorization: 'Bearer ' + key } : {}) };
};

function requestBody() {
  const body = { stream: true, steps: 8 };
  for (const field of $('settings').querySelectorAll('input[name], select[name]')) {
    if (field.value === '') continue;
    body[field.name] = field.type === 'number' ? Number(field.value) : field.value;
  }
  const { verifier, tree } = body;
  delete body.verifier; delete body.tree;
  if (verifier === 'none' || $('decoding').value === 'plain') body.speculation = 'none';
  else if (verifier || tree) body.speculation = { ...(verifier && { verifier }), ...(tree && { tree }) };
  if ($('models').value) body.model = $('models').value;
  return body;
}

async function send() {
  const prompt = $('prompt').value;
  if (state.request) { state.request.abort(); return; }
  if (!prompt) return;
  const chat = $('mode').value === 'chat';
  const body = requestBody();
  let view;
  if (chat) {
    state.messages.push({ role: 'user', content: prompt });
    addMessage('user').textContent = prompt;
    body.messages = state.messages;
    $('prompt').value = '';
    view = addMessage('assistant');
  } else {
    body.prompt = prompt;
    view = addMessage('text');
    view.append(prompt);
  }
  Object.assign(state, { steps: [], shown: -1, node: null, live: true, request: new AbortController() });
  $('send').textContent = 'Stop';
  let text = '', reasoning, firstStep, tokens = 0;
  const decoding = body.speculation === 'none' ? 'plain' : 'speculative';
  try {
    const path = chat ? 'v1/chat/completions' : 'v1/completions';
    const answer = await fetch(path, { method: 'POST', headers: headers(), body: JSON.stringify(body), signal: state.request.signal });
    if (!answer.ok) throw new Error((await answer.json()).error.message);
    for await (const chunk of chunks(answer.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      const choice = chunk.choices[0];
      const content = (chat ? choice?.delta.content : choice?.text) ?? '';
      const newReasoning = chat ? choice?.delta.reasoning_content : undefined;
      text += content;
      const before = state.steps.length;
      state.steps.push(...(chunk.steps ?? []));
      // The first step comes with the prefill: start timing after it.
      firstStep ??= chunk.steps ? performance.now() : undefined;
      if (before) for (const step of chunk.steps ?? []) tokens += step.accepted.length + 1;
      for (const [text, parent] of [[newReasoning, reasoning], [content, view]]) {
        if (!text) continue;
        const span = make('span', { 'data-step': Math.max(before, state.steps.length - 1) }, text);
        span.onclick = () => show(Number(span.dataset.step), false);
        if (text === newReasoning && !reasoning) view.append(reasoning = make('div', { class: 'reasoning' }));
        (text === newReasoning ? reasoning : parent).append(span);
        $('messages').scrollTop = $('messages').scrollHeight;
      }
      if (state.live && state.steps.length > before) show(state.steps.length - 1, true);
    }
    if (tokens) state.speeds[decoding] = 1000 * tokens / (performance.now() - firstStep);
    drawSpeeds();
    if (state.live) show(mostInteresting(), false);
  } catch (error) {
    if (error.name !== 'AbortError') addMessage('error').textContent = error.message;
  }
  if (chat) { state.messages.push({ role: 'assistant', content: text }); saveConversation(); }
  state.request = null;
  $('send').textContent = 'Send';
}

/// Measured speeds. Both are lower than without the display of steps.
function drawSpeeds() {
  const { plain, speculative } = state.speeds;
  const speeds = [['plain', plain], ['speculative', speculative]].filter(([, speed]) => speed)
    .map(([decoding, speed]) => `${decoding} ${speed.toFixed(0)} tokens/s`);
  if (plain && speculative) speeds.push(`${(speculative / plain).toFixed(2)}×`);
  $('speeds').textContent = speeds.join(' · ');
}

/// Index of the most interesting step: accepted and rejected tokens, in a large tree.
function mostInteresting() {
  const score = step => {
    const { fate } = read(step), has = kind => fate.includes(kind) ? 1 : 0;
    return 8 * has('accepted') + 8 * has('rejected') + 2 * step.accepted.length + step.nodes.length;
  };
  return state.steps.reduce((best, step, index) => score(step) > score(state.steps[best]) ? index : best, 0);
}

// Conversations, stored in this browser.

const STORAGE_KEY = 'polydraft-conversations', MAX_CONVERSATIONS = 50;
const conversations = () => { try { return JSON.parse(localStorage.getItem(STORAGE_KEY)) ?? []; } catch { return []; } };

function saveConversation() {
  state.conversation ??= Date.now();
  const others = conversations().filter(({ id }) => id !== state.conversation);
  const all = [{ id: state.conversation, messages: state.messages }, ...others].slice(0, MAX_CONVERSATIONS);
  // Storage may be unavailable; the page works without it.
  try { localStorage.setItem(STORAGE_KEY, JSON.stringify(all)); } catch { /* nothing */ }
  listConversations();
}

function listConversations() {
  const option = ({ id, messages }) => make('option', { value: id }, messages[0]?.content.slice(0, 60) ?? '');
  $('conversations').replaceChildren(make('option', { value: '' }, 'new conversation'), ...conversations().map(option));
  $('conversations').value = state.conversation ?? '';
}

function open(id) {
  state.request?.abort();
  const found = conversations().find(conversation => String(conversation.id) === String(id));
  Object.assign(state, { messages: found?.messages ?? [], conversation: found?.id ?? null });
  $('messages').replaceChildren();
  for (const { role, content } of state.messages) addMessage(role).textContent = content;
  listConversations();
}

// Export of the tree as an image.

/// A copy of the SVG with its styles inlined.
function picture() {
  const source = $('tree'), copy = source.cloneNode(true), all = [...source.querySelectorAll('*')];
  copy.querySelectorAll('*').forEach((element, index) => {
    const style = getComputedStyle(all[index]);
    for (const name of ['fill', 'stroke', 'stroke-width', 'stroke-dasharray', 'opacity', 'font-family', 'font-size', 'font-weight'])
      element.style.setProperty(name, style.getPropertyValue(name));
  });
  const [width, height] = ['width', 'height'].map(name => Number(source.getAttribute(name)));
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg');
  copy.prepend(make('rect', { width, height, fill: getComputedStyle(document.body).backgroundColor }));
  return { text: new XMLSerializer().serializeToString(copy), width, height };
}

function save(blob, name) {
  const link = make('a', { href: URL.createObjectURL(blob), download: name });
  link.click();
  URL.revokeObjectURL(link.href);
}

$('svg').onclick = () => state.steps.length && save(new Blob([picture().text], { type: 'image/svg+xml' }), 'step.svg');
$('png').onclick = () => {
  if (!state.steps.length) return;
  const { text, width, height } = picture(), image = new Image(), canvas = make('canvas');
  image.onload = () => {
    [canvas.width, canvas.height] = [2 * width, 2 * height];
    canvas.getContext('2d').drawImage(image, 0, 0, 2 * width, 2 * height);
    canvas.toBlob(blob => save(blob, 'step.png'));
  };
  image.src = 'data:image/svg+xml,' + encodeURIComponent(text);
};

/// Parsed objects of an event stream.
async function* chunks(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ''; ;) {
    const { value, done } = await reader.read();
    if (done) return;
    const events = (rest + value).split('\n\n');
    rest = events.pop();
    for (const event of events) {
      const data = event.split('\n').filter(line => line.startsWith('data: ')).map(line => line.slice(6)).join('');
      if (data && data !== '[DONE]') yield JSON.parse(data);
    }
  }
}

function addMessage(kind) {
  const view = make('div', { class: 'message ' + kind });
  $('messages').append(view);
  $('messages').scrollTop = $('messages').scrollHeight;
  return view;
}

// Display of a step.

/// Children and outcome of each node, the last accepted node, and the kind of the emitted token.
function read(step) {
  const children = step.nodes.map(() => []);
  step.nodes.forEach((node, id) => node.drawn && children[node.drawn.parent].push(id));
  const accepted = new Set(step.accepted);
  const reached = id => id === 0 || accepted.has(id);
  const fate = step.nodes.map((node, id) => id === 0 ? 'root' : accepted.has(id) ? 'accepted' : reached(node.drawn.parent) ? 'rejected' : 'unreached');
  const end = step.accepted.at(-1) ?? 0;
  return { children, fate, end, last: children[end].length ? 'correction' : 'bonus' };
}

function show(index, live) {
  if (!state.steps[index]) return;
  state.shown = index; state.live = live; state.node = null;
  const slider = $('step');
  slider.max = state.steps.length - 1; slider.value = index;
  $('position').textContent = `step ${index + 1} of ${state.steps.length}`;
  for (const span of document.querySelectorAll('.message span')) span.classList.remove('shown');
  const spans = [...($('messages').lastElementChild?.querySelectorAll('span') ?? [])];
  spans.find(span => Number(span.dataset.step) === index)?.classList.add('shown');
  const step = state.steps[index], { end } = read(step);
  drawVerdict(step); drawTree(step); drawDistributions(step, end); drawChart();
}

function drawVerdict(step) {
  const { children, end, last } = read(step), drafted = step.nodes.length - 1, accepted = step.accepted.length;
  const emitted = make('code', {}, short(step.emitted.text));
  const parts = drafted === 0 ? ['No drafts: ', emitted, ' was sampled from the target.']
    : [make('b', {}, `${accepted + 1} token${accepted ? 's' : ''} in one pass: `), `${drafted} drafted, ${accepted} accepted, then `, emitted,
      last === 'bonus' ? ' as a bonus: no draft was left to reject, and the pass had already computed the next distribution.'
        : ` as a correction: sampled from the part of the target's distribution that the draft${children[end].length > 1 ? 's' : ''} did not cover.`];
  $('verdict').replaceChildren(...parts);
}

const WIDE = 96, HIGH = 38, ACROSS = 128, DOWN = 48;

function drawTree(step) {
  const { children, fate, end, last } = read(step), cells = [];
  let leaf = 0, deepest = 0;
  const lay = (id, depth) => {
    deepest = Math.max(deepest, depth);
    const rows = children[id].map(child => lay(child, depth + 1));
    if (id === end) { rows.push(leaf); cells.emitted = [depth + 1, leaf++]; deepest = Math.max(deepest, depth + 1); }
    const row = rows.length ? (rows[0] + rows.at(-1)) / 2 : leaf++;
    cells[id] = [depth, row];
    return row;
  };
  lay(0, 0);
  const x = depth => 12 + depth * ACROSS, y = row => 12 + row * DOWN;
  const svg = $('tree');
  svg.replaceChildren();
  svg.setAttribute('width', x(deepest) + WIDE + 12); svg.setAttribute('height', y(leaf - 1) + HIGH + 12);
  const edge = ([fromDepth, fromRow], [toDepth, toRow], kind) => {
    const x1 = x(fromDepth) + WIDE, y1 = y(fromRow) + HIGH / 2, x2 = x(toDepth), y2 = y(toRow) + HIGH / 2, middle = (x1 + x2) / 2;
    svg.append(make('path', { class: 'edge ' + kind, d: `M${x1},${y1}C${middle},${y1} ${middle},${y2} ${x2},${y2}` }));
  };
  const chip = ([depth, row], kind, text, below, id) => {
    const group = make('g', { class: 'node ' + kind, transform: `translate(${x(depth)},${y(row)})`, tabindex: id === undefined ? -1 : 0 },
      make('rect', { width: WIDE, height: HIGH, rx: 9 }),
      make('text', { x: WIDE / 2, y: 16, 'text-anchor': 'middle' }, text),
      make('text', { x: WIDE / 2, y: 30, 'text-anchor': 'middle', class: 'small' }, below));
    if (id !== undefined) {
      group.dataset.node = id;
      group.onclick = () => drawDistributions(step, id);
      group.onkeydown = event => event.key === 'Enter' && drawDistributions(step, id);
    }
    svg.append(group);
  };
  step.nodes.forEach((node, id) => node.drawn && edge(cells[node.drawn.parent], cells[id], fate[id]));
  edge(cells[end], cells.emitted, last);
  step.nodes.forEach((node, id) => chip(cells[id], fate[id], node.drawn ? short(node.drawn.text) : 'text so far',
    node.drawn ? `${number(node.drawn.draft)} → ${number(node.drawn.target)}` : `${node.draws || 'no'} draw${node.draws === 1 ? '' : 's'}`, id));
  chip(cells.emitted, last, short(step.emitted.text), last);
  const right = x(cells.emitted[0]) + WIDE - $('scroll').clientWidth;
  if (right > 0) $('scroll').scrollLeft = right + 12;
}

function drawDistributions(step, id) {
  const node = step.nodes[id], { children, fate } = read(step);
  state.node = id;
  for (const chip of $('tree').querySelectorAll('.node')) chip.classList.toggle('chosen', chip.dataset.node === String(id));
  $('distributions-title').textContent = id === 0 ? 'Two distributions of the next token' : `Two distributions after “${visible(node.drawn.text)}”`;
  const words = [];
  if (node.overlap !== null) words.push(`They share ${percent(node.overlap)}, the acceptance rate of a single draft here. `);
  for (const child of children[id]) {
    const { text, draft, target } = step.nodes[child].drawn, token = make('code', {}, short(text));
    if (fate[child] === 'accepted') words.push(token, target >= draft ? ' was accepted: it is at least as likely under the target as under the draft. '
      : ' was accepted at random, although it is less likely under the target than under the draft. ');
    if (fate[child] === 'rejected') words.push(token, target === 0 ? ' was rejected: its probability under the target is 0. '
      : target < draft ? ` was rejected at random: it is ${(draft / target).toFixed(1)} times as likely under the draft as under the target. `
        : ' lost to another draft. ');
  }
  if (!node.draft.length) words.push('No drafts after this node: only the target has a distribution.');
  $('distributions-text').replaceChildren(...words);
  const tokens = new Map();
  for (const [distribution, side] of [[node.target, 'target'], [node.draft, 'draft']])
    for (const { id, text, p } of distribution) tokens.set(id, { ...(tokens.get(id) ?? { text }), [side]: p });
  const rows = [...tokens.values()].sort((a, b) => Math.max(b.draft ?? 0, b.target ?? 0) - Math.max(a.draft ?? 0, a.target ?? 0)).slice(0, 10);
  const bar = (side, p) => make('div', { class: 'bar ' + side }, ...(p === undefined ? ['lower'] : [make('i', { 'data-width': p }), number(p)]));
  $('distributions').replaceChildren(...(rows.length ? [make('span', { class: 'title' }, 'token'), make('span', { class: 'title' }, 'draft'), make('span', { class: 'title' }, 'target')] : []),
    ...rows.flatMap(({ text, draft, target }) => [make('span', { class: 'token', title: text }, visible(text)), bar('draft', draft), bar('target', target)]));
  for (const i of $('distributions').querySelectorAll('i')) i.style.width = `calc((100% - 3rem) * ${i.dataset.width})`;
  drawShares(node);
}

/// Shares of [0, 1]: for each priority, the probability of each token that draws it.
function drawShares(node) {
  const probabilities = new Map(node.draft.map(({ id, p }) => [id, p])), shared = (node.shares ?? []).filter(({ id }) => probabilities.has(id));
  $('shares-part').hidden = !shared.length;
  if (!shared.length) return;
  const colour = index => `hsl(${(205 + index * 137) % 360} 62% 58%)`;
  const ends = [...new Set(shared.flatMap(({ parts }) => parts.flatMap(([start, length]) => [start, start + length])))].sort((a, b) => a - b);
  const rects = [];
  ends.slice(0, -1).forEach((from, at) => {
    const to = ends[at + 1];
    let top = 0;
    shared.forEach(({ id, text, parts }, index) => {
      const density = ([start, length, p]) => start <= from && to <= start + length ? p / length : 0;
      const height = probabilities.get(id) * parts.reduce((sum, part) => sum + density(part), 0);
      if (height < 1e-4) return;
      rects.push(make('rect', { x: 1000 * from, y: 100 * top, width: 1000 * (to - from) + 0.5, height: 100 * height, fill: colour(index) },
        make('title', {}, `${visible(text)}: ${percent(height)} of priorities from ${number(from)} to ${number(to)}`)));
      top += height;
    });
  });
  $('shares').replaceChildren(make('rect', { class: 'rest', x: 0, y: 0, width: 1000, height: 100 }), ...rects);
  $('shares-names').replaceChildren(...shared.map(({ id, text }, index) => {
    const dot = make('i', {});
    dot.style.background = colour(index);
    return make('span', {}, dot, short(text), ` ${percent(probabilities.get(id))}`);
  }));
}

function drawChart() {
  const svg = $('chart'), steps = state.steps, chartWidth = svg.clientWidth || 600, chartHeight = 90;
  const maxTokens = Math.max(4, ...steps.map(step => step.accepted.length + 1)), width = Math.min(24, chartWidth / steps.length);
  svg.replaceChildren();
  svg.setAttribute('viewBox', `0 0 ${chartWidth} ${chartHeight}`);
  let sum = 0;
  const line = steps.map((step, index) => {
    const tokens = step.accepted.length + 1, height = tokens / maxTokens * (chartHeight - 6);
    sum += tokens;
    const rect = make('rect', { class: index === state.shown ? 'tokens shown' : 'tokens', x: index * width, y: chartHeight - height, width: Math.max(1, width - 1), height, rx: 2 },
      make('title', {}, `step ${index + 1}: ${tokens}`));
    rect.onclick = () => show(index, false);
    svg.append(rect);
    return `${index ? 'L' : 'M'}${(index + 0.5) * width},${chartHeight - sum / (index + 1) / maxTokens * (chartHeight - 6)}`;
  });
  svg.append(make('path', { d: line.join('') }));
  $('efficiency').textContent = `${sum} tokens, ${steps.length} passes: ${(sum / steps.length).toFixed(2)} a pass`;
  const drafted = [], accepted = [];
  for (const step of steps) {
    const depths = [0];
    step.nodes.forEach((node, id) => { if (node.drawn) depths[id] = depths[node.drawn.parent] + 1; });
    for (let depth = 0; depth < Math.max(...depths); depth++) drafted[depth] = (drafted[depth] ?? 0) + 1;
    for (let depth = 0; depth < step.accepted.length; depth++) accepted[depth] = (accepted[depth] ?? 0) + 1;
  }
  $('positions').replaceChildren(...drafted.map((count, depth) => make('span', {}, `position ${depth + 1}: ${percent((accepted[depth] ?? 0) / count)} accepted`)));
}

// Event handlers.

$('message-form').onsubmit = event => { event.preventDefault(); send(); };
$('prompt').onkeydown = event => {
  if (event.key === 'Enter' && !event.shiftKey && $('mode').value === 'chat') { event.preventDefault(); send(); }
};
$('new').onclick = () => open('');
$('conversations').onchange = () => open($('conversations').value);
$('delete').onclick = () => {
  const rest = conversations().filter(({ id }) => id !== state.conversation);
  try { localStorage.setItem(STORAGE_KEY, JSON.stringify(rest)); } catch { /* nothing */ }
  open('');
};
$('step').oninput = () => show(Number($('step').value), false);
$('back').onclick = () => show(state.shown - 1, false);
$('next').onclick = () => show(state.shown + 1, state.shown + 2 >= state.steps.length);

async function loadModels() {
  const answer = await fetch('v1/models', { headers: headers() });
  if (answer.status === 401) { $('settings').open = true; $('model').textContent = 'needs an API key: see Settings'; return; }
  state.models = (await answer.json()).data;
  $('models').replaceChildren(...state.models.map(({ id }) => make('option', { value: id }, id)));
  describe();
}

/// Shows the selected model. Its details are known only if it is loaded.
function describe() {
  const model = state.models.find(({ id }) => id === $('models').value), speculation = model?.speculation;
  $('model').textContent = speculation ? `${speculation.draft ?? 'draft'} · ${speculation.verifier} · ${speculation.tree}` : '';
  const options = ['', ...(speculation?.verifiers ?? []), 'none'].map(name => make('option', { value: name }, name || `default (${speculation?.verifier ?? 'none'})`));
  document.querySelector('[name=verifier]').replaceChildren(...options);
}
$('key').onchange = () => loadModels();
$('models').onchange = () => { state.speeds = {}; drawSpeeds(); describe(); };
listConversations();
loadModels().catch(error => { $('model').textContent = error.message; });
