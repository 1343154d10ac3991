// Stands before an MCP server and adds the key, because the conformance suite cannot send one.
// usage: SUPERSERVE_API_KEY=KEY node proxy.mjs URL
import http from "node:http"

const target = new URL(process.argv[2])
const authorization = `Bearer ${process.env.SUPERSERVE_API_KEY}`
const server = http.createServer((request, response) => {
  const { method, url: path } = request
  const headers = { ...request.headers, authorization }
  const forward = http.request({ host: target.hostname, port: target.port, method, path, headers }, (answer) => {
    response.writeHead(answer.statusCode, answer.rawHeaders)
    answer.pipe(response)
  })
  forward.on("error", () => response.destroy())
  response.on("close", () => forward.destroy())
  request.pipe(forward)
})
server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}${target.pathname}`))
