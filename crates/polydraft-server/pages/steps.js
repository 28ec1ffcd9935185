// Steps of decoding: draws the tree of a step, its distributions, and tokens per pass.
'use strict';

/// Text with visible white space. End tokens have no text.
const visible = text => text === '' ? '⏹' : text.replace(/ /g, '·').replace(/\n/g, '↵').replace(/\t/g, '⇥');
const short = text => { const seen = [...visible(text)]; return seen.length > 11 ? seen.slice(0, 10).join('') + '…' : seen.join(''); };
const number = p => p >= 0.9995 ? '1' : p >= 0.0995 ? p.toFixed(2).slice(1) : p >= 0.001 ? p.toFixed(3).slice(1) : p > 0 ? '<.001' : '0';
const percent = p => p >= 0.995 ? '100 %' : p >= 0.095 ? Math.round(100 * p) + ' %' : (100 * p).toFixed(1) + ' %';

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
  for (const span of $('messages').querySelectorAll('.shown')) span.classList.remove('shown');
  $('messages').querySelector(`span[data-step="${index}"]`)?.classList.add('shown');
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
  const rows = [...tokens.values()].sort((a, b) => Math.max(b.draft ?? 0, b.target ?? 0) - Math.max(a.draft ?? 0, a.target ?? 0)).slice(0, 8);
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

/// Index of the most interesting step: accepted and rejected tokens, in a large tree.
function mostInteresting() {
  const score = step => {
    const { fate } = read(step), has = kind => fate.includes(kind) ? 1 : 0;
    return 8 * has('accepted') + 8 * has('rejected') + 2 * step.accepted.length + step.nodes.length;
  };
  return state.steps.reduce((best, step, index) => score(step) > score(state.steps[best]) ? index : best, 0);
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

$('step').oninput = () => show(Number($('step').value), false);
$('back').onclick = () => show(state.shown - 1, false);
$('next').onclick = () => show(state.shown + 1, state.shown + 2 >= state.steps.length);
