// The smallest MCP server that the official TypeScript library makes of one of our tools; scripts/compare-mcp.py measures it.
import { McpServer } from "@modelcontextprotocol/sdk/server/mcp.js"
import { StdioServerTransport } from "@modelcontextprotocol/sdk/server/stdio.js"
import { z } from "zod"

const { SUPERSERVE_API_KEY: key, SUPERSERVE_BASE_URL: base } = process.env
const server = new McpServer({ name: "minimal", version: "1" })
server.registerTool(
  "sandbox_info",
  { description: "Show one sandbox.", inputSchema: { sandbox_id: z.string() } },
  async ({ sandbox_id: id }) => {
    const answer = await fetch(`${base}/sandboxes/${id}`, { headers: { "x-api-key": key } })
    const { name, status } = await answer.json()
    return { content: [{ type: "text", text: `${id} (${name}) — ${status}` }], structuredContent: { id, name, status } }
  },
)
await server.connect(new StdioServerTransport())
