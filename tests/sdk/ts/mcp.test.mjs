// The official TypeScript MCP client, on both transports: tools, progress, and a cancelled call whose command must end.
import assert from "node:assert/strict"
import { after, before, describe, it } from "node:test"
import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"

const { SUPERSERVE_PROGRAM: program, SUPERSERVE_API_KEY: key, SUPERSERVE_BASE_URL: base } = process.env

const transports = {
  stdio: () =>
    new StdioClientTransport({
      command: program,
      args: ["mcp"],
      env: { SUPERSERVE_API_KEY: key, SUPERSERVE_BASE_URL: base },
      stderr: "ignore",
    }),
  http: () =>
    new StreamableHTTPClientTransport(new URL(`${base}/mcp`), {
      requestInit: { headers: { Authorization: `Bearer ${key}` } },
    }),
}

for (const [name, transport] of Object.entries(transports)) {
  describe(name, () => {
    const client = new Client({ name: "tests", version: "1" })
    let sandbox
    const call = (tool, args = {}, options) => client.callTool({ name: tool, arguments: args }, undefined, options)
    const ok = async (tool, args, options) => {
      const result = await call(tool, args, options)
      assert.ok(!result.isError, JSON.stringify(result.content))
      return result.structuredContent
    }
    const exec = (command, options) => ok("sandbox_exec", { sandbox_id: sandbox, command }, options)

    before(async () => {
      await client.connect(transport())
      sandbox = (await ok("sandbox_create")).id
    })
    after(async () => {
      await ok("sandbox_kill", { sandbox_id: sandbox })
      await client.close()
    })

    it("lists the tools and says who it is", async () => {
      assert.equal(client.getServerVersion().name, "superserve")
      assert.match(client.getInstructions(), /sandbox_create/)
      assert.ok((await client.listTools()).tools.length >= 12)
    })

    it("runs commands, moves files, pauses and wakes", async () => {
      assert.equal((await exec("echo hello; exit 3")).exit_code, 3)
      const file = { sandbox_id: sandbox, path: "/tmp/ä.txt" }
      await ok("sandbox_files_write", { ...file, content: "grüße" })
      assert.equal((await ok("sandbox_files_read", file)).content, "grüße")
      assert.equal((await ok("sandbox_pause", { sandbox_id: sandbox })).status, "paused")
      assert.equal((await exec("cat /tmp/ä.txt")).stdout, "grüße")
    })

    it("explains what is wrong", async () => {
      const result = await call("sandbox_exec", { sandbox_id: sandbox })
      assert.ok(result.isError && result.content[0].text.includes("validation"), JSON.stringify(result))
      await assert.rejects(client.callTool({ name: "sandbox_explode", arguments: {} }), /sandbox_create/)
    })

    it("reports progress that rises", async () => {
      const seen = []
      const done = await exec("sleep 6; echo done", { onprogress: ({ progress }) => seen.push(progress) })
      assert.equal(done.stdout, "done\n")
      assert.ok(seen.length >= 2 && seen.every((n, i) => i === 0 || n > seen[i - 1]), String(seen))
    })

    it("ends the command of a cancelled call", async () => {
      const stop = new AbortController()
      const running = async () => (await exec("pgrep -fx 'sleep 300'")).exit_code === 0
      const until = async (wanted) => {
        for (let n = 0; n < 50; n += 1) {
          if ((await running()) === wanted) return
          await new Promise((done) => setTimeout(done, 100))
        }
        assert.fail(`sleep 300 is ${wanted ? "not started" : "still there"}`)
      }
      const cancelled = assert.rejects(exec("sleep 300", { signal: stop.signal }))
      await until(true)
      stop.abort()
      await cancelled
      await until(false)
    })
  })
}
