// Leads connections to the sandbox hosts to a local Superserve, whatever port it listens on. Loaded with
// `node --require`; printed by `superserve client-env`. Only the address changes: the certificate is still checked
// against the name the program asked for. Covers fetch, https and WebSocket, in CommonJS and in ES modules.
'use strict'
const tls = require('node:tls')

const address = process.env.SUPERSERVE_EDGE_ADDR || ''
const colon = address.lastIndexOf(':')
const host = address.slice(0, colon).replace(/^\[|\]$/g, '')
const port = Number(address.slice(colon + 1))
const suffixes = (process.env.SUPERSERVE_SANDBOX_HOSTS || '').toLowerCase().split(',').filter(Boolean)

function isSandbox(name) {
  const lower = typeof name === 'string' ? name.toLowerCase() : ''
  return suffixes.some((suffix) => lower === suffix || lower.endsWith('.' + suffix))
}

// tls.connect takes (options), (port, host, options) and (port, options), each with a callback at the end.
function normalise(args) {
  if (args[0] !== null && typeof args[0] === 'object') return { options: args[0], rest: args.slice(1) }
  if (typeof args[0] !== 'number' && !/^\d+$/.test(args[0])) return undefined
  let options = { port: Number(args[0]) }
  let next = 1
  if (typeof args[next] === 'string') options.host = args[next++]
  if (args[next] !== null && typeof args[next] === 'object') options = { ...options, ...args[next++] }
  return { options, rest: args.slice(next) }
}

if (host && port && suffixes.length && !tls.connect.superserve) {
  const connect = tls.connect
  const redirected = function (...args) {
    const call = normalise(args)
    // A given socket is connected already (through a proxy), a path is a Unix socket.
    if (!call || call.options.socket || call.options.path) return connect.apply(tls, args)
    const name = call.options.servername || call.options.host || call.options.hostname
    if (!isSandbox(name)) return connect.apply(tls, args)
    const options = { ...call.options, servername: name, host, hostname: host, port, lookup: undefined }
    return connect.call(tls, options, ...call.rest)
  }
  redirected.superserve = true
  tls.connect = redirected
  require('node:module').syncBuiltinESMExports()
}
