// The steps of a session in node: the same lines as loadtest/clients/steps.py.

export const [baseUrl, real, simulated] = process.argv.slice(2);

export class ModelUnable extends Error {}

export function expect(condition, why) {
  if (!condition) throw new Error(why);
}

export async function step(name, action) {
  let verdict = "ok";
  let why = "";
  try {
    await action();
  } catch (error) {
    verdict = error instanceof ModelUnable ? "model" : "failed";
    why = `${error?.name}: ${error?.message}`.replace(/\s+/g, " ").slice(0, 400);
  }
  console.log(`{"step": ${JSON.stringify(name)}, "verdict": "${verdict}", "why": ${JSON.stringify(why)}}`);
}

export async function refused(ask, kind, words) {
  try {
    await ask();
  } catch (error) {
    expect(error instanceof kind, `${error?.name}: ${error?.message}`);
    expect(error.message.includes(words), error.message);
    return error;
  }
  throw new Error(`not refused: ${words}`);
}
