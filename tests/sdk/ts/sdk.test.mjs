// The official TypeScript SDK, unmodified, against this server.
import assert from "node:assert/strict"
import { after, before, test } from "node:test"
import { setTimeout as sleep } from "node:timers/promises"

import { AuthenticationError, NotFoundError, Sandbox, SandboxError, ValidationError } from "@superserve/sdk"

const BINARY = Uint8Array.from({ length: 16384 }, (_, i) => i % 256)
const UNICODE_PATH = "/home/user/naïve räksmörgås/日本語 file+100%?#&.txt"
let sandbox

before(async () => {
  sandbox = await Sandbox.create({ name: "sdk-ts", metadata: { suite: "typescript" }, envVars: { GREETING: "hello" } })
})
after(async () => {
  await sandbox?.kill()
})

test("a new sandbox is ready and described", async () => {
  assert.equal(sandbox.status, "active")
  const info = await sandbox.getInfo()
  assert.equal(info.id, sandbox.id)
  assert.equal(info.name, "sdk-ts")
  assert.equal(info.status, "active")
  assert.deepEqual(info.metadata, { suite: "typescript" })
  assert.ok(info.createdAt instanceof Date && Math.abs(Date.now() - info.createdAt.getTime()) < 300_000)
})

test("list and metadata filter", async () => {
  assert.ok((await Sandbox.list()).some((s) => s.id === sandbox.id))
  assert.deepEqual((await Sandbox.list({ metadata: { suite: "typescript" } })).map((s) => s.id), [sandbox.id])
  assert.deepEqual(await Sandbox.list({ metadata: { suite: "none" } }), [])
})

test("update", async () => {
  await sandbox.update({ metadata: { suite: "typescript", step: "2" }, timeoutSeconds: 3600 })
  assert.equal((await sandbox.getInfo()).metadata.step, "2")
  assert.equal((await sandbox.getInfo()).timeoutSeconds, 3600)
  await sandbox.update({ timeoutSeconds: null })
  assert.equal((await sandbox.getInfo()).timeoutSeconds, undefined)
})

test("network rules and the network log", async () => {
  await sandbox.update({ network: { allowOut: ["*.Example.com", "1.1.1.1"], denyOut: ["0.0.0.0/0"] } })
  const network = (await sandbox.getInfo()).network
  assert.deepEqual(network, { allowOut: ["1.1.1.1/32", "*.example.com"], denyOut: ["0.0.0.0/0"] })
  // Refused: nothing leaves the machine.
  await sandbox.commands.run("timeout 5 bash -c 'exec 3<>/dev/tcp/198.51.100.1/80 && cat <&3'")
  let page
  for (let i = 0; i < 40; i++) {
    page = await sandbox.getNetworkLog({ limit: 1, verdict: "blocked" })
    if (page.events.length > 0) break
    await sleep(50)
  }
  const event = page.events[0]
  assert.equal(event.kind, "connection")
  assert.deepEqual([event.dstIp, event.dstPort, event.verdict, event.matchRule], ["198.51.100.1", 80, "blocked", "cidr"])
  assert.ok(event.ts instanceof Date)
  assert.equal(page.hasMore, false)
  await assert.rejects(sandbox.update({ network: { denyOut: ["example.com"] } }), ValidationError)
  await sandbox.update({ network: { allowOut: [], denyOut: [] } })
  assert.equal((await sandbox.getInfo()).network, undefined)
})

test("exit codes and both streams", async () => {
  const done = await sandbox.commands.run("echo out; echo err >&2; exit 42")
  assert.deepEqual([done.stdout, done.stderr, done.exitCode], ["out\n", "err\n", 42])
  assert.equal((await sandbox.commands.run("no-such-program-anywhere")).exitCode, 127)
  const env = await sandbox.commands.run('echo "$GREETING $MORE"; pwd', { cwd: "/tmp", env: { MORE: "ä" } })
  assert.equal(env.stdout, "hello ä\n/tmp\n")
  const late = await sandbox.commands.run("echo early; sleep 30", { timeoutMs: 1000 })
  assert.deepEqual([late.stdout, late.exitCode], ["early\n", 124])
})

test("output streams while it is made", async () => {
  const pieces = []
  const command = "for i in 1 2 3; do echo line $i; sleep 0.3; done"
  const done = await sandbox.commands.run(command, { onStdout: (data) => pieces.push(data) })
  assert.equal(done.exitCode, 0)
  assert.equal(pieces.join(""), "line 1\nline 2\nline 3\n")
  assert.ok(pieces.length >= 2, "everything came at once")
})

test("files of any content and name", async () => {
  await sandbox.files.write("/app/deep/data.bin", BINARY)
  assert.deepEqual(Buffer.from(await sandbox.files.read("/app/deep/data.bin")), Buffer.from(BINARY))
  await sandbox.files.write(UNICODE_PATH, "grüße ✓\r\n")
  assert.equal(await sandbox.files.readText(UNICODE_PATH), "grüße ✓\r\n")
  await sandbox.files.write("/tmp/empty", "")
  assert.equal((await sandbox.files.read("/tmp/empty")).length, 0)
  await assert.rejects(sandbox.files.read("/no/such/file"), SandboxError)
})

test("a directory comes as a zip", async () => {
  await sandbox.files.write("/app/site/ünï.txt", "zipped")
  const zip = Buffer.from(await sandbox.files.downloadDir("/app/site"))
  assert.equal(zip.subarray(0, 4).toString("latin1"), "PK\x03\x04")
  assert.ok(zip.includes(Buffer.from("site/ünï.txt")))
})

test("exec on a paused sandbox resumes it", async () => {
  await sandbox.commands.run("echo kept >/home/user/kept")
  await sandbox.pause()
  assert.equal((await sandbox.getInfo()).status, "paused")
  assert.equal((await sandbox.commands.run("cat /home/user/kept")).stdout, "kept\n")
  assert.equal((await sandbox.getInfo()).status, "active")
  await sandbox.pause()
  await sandbox.resume()
  assert.equal((await sandbox.getInfo()).status, "active")
})

test("connect wakes, and the older handle heals itself", async () => {
  await sandbox.pause()
  const second = await Sandbox.connect(sandbox.id)
  assert.equal((await second.commands.run("echo again")).stdout, "again\n")
  assert.equal((await sandbox.commands.run("echo still")).stdout, "still\n")
})

test("commands side by side", async () => {
  const runs = Array.from({ length: 20 }, (_, n) => sandbox.commands.run(`echo ${n}; exit ${n}`))
  const done = await Promise.all(runs)
  assert.deepEqual(done.map((d) => [d.stdout, d.exitCode]), done.map((_, n) => [`${n}\n`, n]))
})

test("previews of both policies, at the address the SDK builds", async () => {
  const ports = `${process.env.SUPERSERVE_BASE_URL}/sandboxes/${sandbox.id}/preview-ports`
  // This version of the SDK builds addresses; what publishes is the API.
  const call = async (path, body) => {
    const headers = { "X-API-Key": process.env.SUPERSERVE_API_KEY, "Content-Type": "application/json" }
    const answer = await fetch(ports + path, { method: "POST", headers, body: body && JSON.stringify(body) })
    assert.equal(answer.status, 200)
    return answer.json()
  }
  await sandbox.commands.run("cd /tmp && echo ours >page.txt && (nohup python3 -m http.server 8000 >/dev/null 2>&1 &)")
  const url = sandbox.getPreviewUrl(8000)
  assert.equal((await fetch(url)).status, 404)
  assert.equal((await call("", { port: 8000 })).access, "public")
  let answer
  for (let i = 0; i < 50 && answer?.status !== 200; i++) {
    answer = await fetch(`${url}/page.txt`)
    if (answer.status !== 200) await sleep(100)
  }
  assert.equal(await answer.text(), "ours\n")
  assert.equal((await call("", { port: 8000, access: "private" })).token_version, 2)
  assert.equal((await fetch(`${url}/page.txt`)).status, 401)
  const { token, header, query_param } = await call("/8000/token", { expires_in_seconds: 60 })
  assert.equal((await fetch(`${url}/page.txt`, { headers: { [header]: token } })).status, 200)
  const link = await fetch(`${url}/page.txt?a=1&${query_param}=${token}`, { redirect: "manual" })
  assert.deepEqual([link.status, link.headers.get("location")], [302, "/page.txt?a=1"])
  const cookie = link.headers.get("set-cookie").split(";")[0]
  assert.equal((await fetch(`${url}/page.txt`, { headers: { cookie } })).status, 200)
  await call("/8000/token/rotate")
  assert.equal((await fetch(`${url}/page.txt`, { headers: { cookie } })).status, 401)
})

test("kill and kill again", async () => {
  const made = await Sandbox.create({ name: "sdk-ts-kill" })
  await made.kill()
  await made.kill()
  await Sandbox.killById(made.id)
  await assert.rejects(Sandbox.connect(made.id), NotFoundError)
})

test("a timeout pauses an active sandbox", async () => {
  const made = await Sandbox.create({ name: "sdk-ts-timeout", timeoutSeconds: 2 })
  try {
    let status
    for (let i = 0; i < 100 && status !== "paused"; i++) {
      await sleep(100)
      status = (await made.getInfo()).status
    }
    assert.equal(status, "paused")
  } finally {
    await made.kill()
  }
})

test("refusals have their class", async () => {
  await assert.rejects(Sandbox.create({ name: "x".repeat(65) }), ValidationError)
  await assert.rejects(Sandbox.list({ apiKey: `ss_live_${"0".repeat(32)}` }), AuthenticationError)
})
