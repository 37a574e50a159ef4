// Node's client libraries talk to the gateway at the address in argv[2]. Each check prints a line; the status is 1 if one failed.
import assert from 'node:assert/strict';
import Anthropic from '@anthropic-ai/sdk';
import OpenAI from 'openai';
import { createAnthropic } from '@ai-sdk/anthropic';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
import { generateText, stepCountIs, streamText, tool } from 'ai';
import { z } from 'zod';

const address = process.argv[2];
const model = 'tandem-sim';
const apiKey = 'any';
const messages = [{ role: 'user', content: 'Hello there' }];
const schema = { type: 'object', properties: { city: { type: 'string' } }, required: ['city'] };
const openai = new OpenAI({ baseURL: address + '/v1', apiKey, maxRetries: 0 });
const anthropic = new Anthropic({ baseURL: address, apiKey, maxRetries: 0 });
const compatible = createOpenAICompatible({ name: 'tandem', baseURL: address + '/v1', apiKey, includeUsage: true });

// talk generates and streams with a model of Vercel's AI SDK.
async function talk(m) {
  const whole = await generateText({ model: m, prompt: 'Hello there', maxOutputTokens: 40, maxRetries: 0 });
  assert.ok(whole.text && whole.usage.outputTokens > 0);
  const errors = [];
  const s = streamText({ model: m, prompt: 'Hello there', maxOutputTokens: 40, maxRetries: 0, onError: ({ error }) => errors.push(error) });
  let text = '';
  for await (const part of s.textStream) text += part;
  assert.deepEqual(errors, []);
  assert.ok(text && (await s.usage).outputTokens > 0);
}

// call has it call a tool, run it and go on.
async function call(m) {
  let ran = 0;
  const weather = tool({ inputSchema: z.object({ city: z.string() }), execute: async () => { ran++; return 'sunny'; } });
  const r = await generateText({ model: m, prompt: 'The weather in Paris?', maxOutputTokens: 400, maxRetries: 0, tools: { weather },
    stopWhen: stepCountIs(2), prepareStep: ({ stepNumber }) => ({ toolChoice: stepNumber === 0 ? { type: 'tool', toolName: 'weather' } : 'none' }) });
  assert.equal(ran, 1);
  assert.equal(r.steps.length, 2);
}

const checks = {
  async openai_chat() {
    const p = { model, messages, max_tokens: 40, temperature: 0 };
    const whole = await openai.chat.completions.create(p);
    let text = '', usage;
    for await (const c of await openai.chat.completions.create({ ...p, stream: true, stream_options: { include_usage: true } })) {
      text += c.choices[0]?.delta.content ?? '';
      usage = c.usage ?? usage;
    }
    assert.equal(text, whole.choices[0].message.content);
    assert.equal(usage.total_tokens, whole.usage.total_tokens);
    await assert.rejects(openai.chat.completions.create({ ...p, model: 'none' }), OpenAI.NotFoundError);
    await assert.rejects(openai.chat.completions.create({ ...p, max_tokens: 1e7 }), { status: 400, code: 'context_length_exceeded' });
    const cut = await openai.chat.completions.create({ ...p, max_tokens: 2000, stream: true });
    for await (const _ of cut) break; // which ends the request
  },
  async openai_tools() {
    const tools = [{ type: 'function', function: { name: 'weather', parameters: schema } }];
    const m = (await openai.chat.completions.create({ model, messages, max_tokens: 400, tools,
      tool_choice: { type: 'function', function: { name: 'weather' } } })).choices[0].message;
    assert.ok('city' in JSON.parse(m.tool_calls[0].function.arguments));
    const end = await openai.chat.completions.create({ model, max_tokens: 12, tools, tool_choice: 'none',
      messages: [...messages, m, { role: 'tool', tool_call_id: m.tool_calls[0].id, content: 'sunny' }] });
    assert.ok(end.choices[0].message.content);
  },
  async openai_responses() {
    const p = { model, input: 'Hello there', max_output_tokens: 400, store: false };
    assert.ok((await openai.responses.create(p)).output_text);
    assert.ok((await openai.responses.stream(p).finalResponse()).output_text);
  },
  async anthropic_messages() {
    const p = { model, messages, max_tokens: 12 };
    const whole = await anthropic.messages.create(p);
    const s = await anthropic.messages.stream(p).finalMessage();
    assert.equal(s.content[0].text, whole.content[0].text);
    assert.equal(s.usage.output_tokens, whole.usage.output_tokens);
    await assert.rejects(anthropic.messages.create({ ...p, model: 'none' }), Anthropic.NotFoundError);
    await assert.rejects(anthropic.messages.create({ ...p, max_tokens: 1e7, stream: true }), Anthropic.BadRequestError);
  },
  ai_sdk_compatible: () => talk(compatible(model)),
  ai_sdk_compatible_tools: () => call(compatible(model)),
  ai_sdk_anthropic: () => talk(createAnthropic({ baseURL: address + '/v1', apiKey })(model)),
  ai_sdk_anthropic_tools: () => call(createAnthropic({ baseURL: address + '/v1', apiKey })(model)),
  ai_sdk_openai_chat: () => talk(createOpenAI({ baseURL: address + '/v1', apiKey }).chat(model)),
  ai_sdk_openai_responses: () => talk(createOpenAI({ baseURL: address + '/v1', apiKey })(model)),
};

for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log('ok    ', name);
  } catch (e) {
    process.exitCode = 1;
    console.log('FAILED', name, String(e.stack ?? e).slice(0, 400));
  }
}
