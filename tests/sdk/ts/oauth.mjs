// The official TypeScript MCP client with its own OAuth. Whoever starts this sits before the browser: each line
// `AUTHORIZE <url>` on stdout is an address to open and agree to.
import assert from "node:assert/strict"
import { createServer } from "node:http"
import { UnauthorizedError } from "@modelcontextprotocol/sdk/client/auth.js"
import { Client } from "@modelcontextprotocol/sdk/client/index.js"
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js"

const url = new URL(process.env.SUPERSERVE_MCP_URL)

let came
const callback = createServer((request, response) => {
  const { pathname, searchParams } = new URL(request.url, "http://localhost")
  response.setHeader("content-type", "text/html")
  response.end("<!doctype html><title>done</title>")
  if (pathname === "/callback") came?.(searchParams)
})
await new Promise((listening) => callback.listen(0, "127.0.0.1", listening))

class Provider {
  redirectUrl = `http://127.0.0.1:${callback.address().port}/callback`
  clientMetadata = {
    client_name: "TypeScript client",
    redirect_uris: [this.redirectUrl],
    // Hosted clients often ask for a secret; they are given none, and must cope.
    token_endpoint_auth_method: "client_secret_post",
  }
  state = () => "the state"
  clientInformation = () => this.client
  saveClientInformation(client) {
    this.client = client
  }
  tokens = () => this.known
  saveTokens(tokens) {
    this.known = tokens
    this.saved = (this.saved ?? 0) + 1
  }
  codeVerifier = () => this.verifier
  saveCodeVerifier(verifier) {
    this.verifier = verifier
  }
  invalidateCredentials(what) {
    if (what === "all") this.client = undefined
    this.known = undefined
  }
  redirectToAuthorization(address) {
    this.answer = new Promise((resolve) => (came = resolve))
    console.log(`AUTHORIZE ${address.href}`)
  }
}

const provider = new Provider()

async function connect() {
  const client = new Client({ name: "tests", version: "1" })
  await client.connect(new StreamableHTTPClientTransport(url, { authProvider: provider }))
  return client
}

/** Connects; the first try ends with a visit to the browser. */
async function connectAfterConsent() {
  const transport = new StreamableHTTPClientTransport(url, { authProvider: provider })
  await assert.rejects(new Client({ name: "tests", version: "1" }).connect(transport), UnauthorizedError)
  const answer = await provider.answer
  assert.equal(answer.get("state"), "the state")
  assert.equal(answer.get("iss"), url.origin)
  await transport.finishAuth(answer.get("code"))
  return connect()
}

let client = await connectAfterConsent()
assert.ok((await client.listTools()).tools.length >= 12)

// The access token has ended, and several sessions that share it find out at once: each renews, and none of them may end the
// grant. One transport each, because one gives up when it is refused again while it renews.
const sessions = [client, ...(await Promise.all([1, 2, 3].map(connect)))]
const before = provider.known
provider.known = { ...before, access_token: `${before.access_token.slice(0, -1)}_` }
provider.saved = 0
const list = { name: "sandbox_list", arguments: {} }
const results = await Promise.all(sessions.map((session) => session.callTool(list)))
assert.ok(results.every((result) => !result.isError), JSON.stringify(results))
assert.notEqual(provider.known.refresh_token, before.refresh_token)
assert.ok(provider.saved >= 1)
assert.ok((await client.listTools()).tools.length >= 12)
await Promise.all(sessions.map((session) => session.close()))

// Revoked, it has to ask again.
const response = await fetch(new URL("/revoke", url), {
  method: "POST",
  body: new URLSearchParams({ token: provider.known.access_token, client_id: provider.client.client_id }),
})
assert.equal(response.status, 200)
client = await connectAfterConsent()
assert.ok((await client.listTools()).tools.length >= 12)
await client.close()
callback.closeAllConnections()
callback.close()
console.log("DONE")
