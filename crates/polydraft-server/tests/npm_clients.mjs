// OpenAI's client for JavaScript and the AI SDK, unmodified, against `polydraft serve` with the demo pair.
//
// node npm_clients.mjs path/to/polydraft FOLDER (which has node_modules)
import { spawn } from 'node:child_process';
import { createRequire } from 'node:module';
import { resolve } from 'node:path';
import assert from 'node:assert/strict';

const [program, folder] = process.argv.slice(2);
const require = createRequire(resolve(folder, 'node_modules') + '/');
const load = async name => import(require.resolve(name));

const server = spawn(program, ['--no-config', 'serve', '--port', '0', '--api-key', 'secret']);
const url = await new Promise((done, failed) => {
  let output = '';
  server.stderr.on('data', data => {
    const found = /\(API: (http\S+)\);/.exec(output += data);
    if (found) done(found[1]);
  });
  server.on('exit', () => failed(new Error(output)));
});

try {
  const messages = [{ role: 'user', content: 'Returns the sum of two numbers.' }];
  const { default: OpenAI } = await load('openai');
  const client = new OpenAI({ baseURL: url, apiKey: 'secret' });
  const answer = await client.chat.completions.create({ model: 'target', messages, max_tokens: 24, seed: 1 });
  assert.ok(answer.choices[0].message.content);
  let streamed = '';
  for await (const chunk of await client.chat.completions.create({ model: 'target', messages, max_tokens: 24, seed: 1, stream: true }))
    streamed += chunk.choices[0]?.delta?.content ?? '';
  assert.equal(streamed, answer.choices[0].message.content);

  const { generateText, streamText, generateObject } = await load('ai');
  const { createOpenAICompatible } = await load('@ai-sdk/openai-compatible');
  const { z } = await load('zod');
  const provider = createOpenAICompatible({ name: 'polydraft', baseURL: url, apiKey: 'secret', supportsStructuredOutputs: true });
  const model = provider('target');
  assert.ok((await generateText({ model, messages, maxOutputTokens: 24 })).text);
  let text = '';
  for await (const chunk of streamText({ model, messages, maxOutputTokens: 24 }).textStream) text += chunk;
  assert.ok(text);
  const schema = z.object({ colour: z.enum(['red', 'blue']) });
  const { object } = await generateObject({ model, messages, schema, maxOutputTokens: 60 });
  assert.ok(['red', 'blue'].includes(object.colour));
  console.log('openai and ai for npm: passed');
} finally {
  server.kill();
}
