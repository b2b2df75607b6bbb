// A worker of a job in JavaScript, from docs/protocol.md alone.
//
//     node worker.mjs HOST:PORT PROTOS     with EDL_TOKEN, or EDL_IDENTITY where the job has a certificate
//
// The model is tests/zoo/counting.py: the gradient of record r is one in row r of the table "counts", and one
// in the dense tensor "total". Another model differs in `MODEL` and in `gradients`. A line is printed for each
// span that all servers have.

import { setTimeout as pause } from 'node:timers/promises'
import { randomUUID } from 'node:crypto'
import path from 'node:path'
import grpc from '@grpc/grpc-js'
import loader from '@grpc/proto-loader'
import { blake2b } from '@noble/hashes/blake2.js'

const [master_address, protos] = process.argv.slice(2)
const CALL_S = 30
const GONE_S = 10 // the master ends with its job, and waits for none but its own workers
const MODEL = {
  dense: [{ name: 'total', shape: [1], kind: 'parameter' }],
  tables: [
    { name: 'counts', dim: 1, initializer: 'zeros', scale: 0.05, dtype: 'float32', rounding: 'nearest' },
  ],
  optimizer: { name: 'SGD', lr: -1.0 },
  seed: 0,
}

// -- Calls

const [token, certificate, key] = process.env.EDL_IDENTITY
  ? JSON.parse(Buffer.from(process.env.EDL_IDENTITY, 'base64'))
  : [process.env.EDL_TOKEN]
const edl = ['master.proto', 'ps.proto'].reduce((found, name) => {
  const kinds = { keepCase: true, longs: Number, enums: String, defaults: true, oneofs: true }
  const read = loader.loadSync(path.join(protos, name), kinds)
  return { ...found, ...grpc.loadPackageDefinition(read).edl.v1 }
}, {})

function connect(Service, address) {
  const pem = (text) => Buffer.from(text)
  const credentials = certificate
    ? grpc.credentials.createSsl(pem(certificate), pem(key), pem(certificate))
    : grpc.credentials.createInsecure()
  return new Service(address, credentials, {
    'grpc.max_receive_message_length': 1 << 30,
    'grpc.max_send_message_length': 1 << 30,
    'grpc.enable_http_proxy': 0,
    'grpc.ssl_target_name_override': 'edl-job',
    'grpc.max_reconnect_backoff_ms': 1000,
  })
}

// Any call may be repeated: it then changes nothing.
async function call(client, method, request, keys = {}, wait_s = 0) {
  const metadata = new grpc.Metadata()
  for (const [name, value] of Object.entries({ 'x-edl-token': token, ...keys })) metadata.set(name, value)
  const began = Date.now()
  for (let pause_ms = 50; ; pause_ms = Math.min(2 * pause_ms, 1000)) {
    const deadline = new Date(Date.now() + 1000 * (CALL_S + wait_s))
    try {
      return await new Promise((resolve, reject) =>
        client[method](request, metadata, { deadline }, (error, reply) => (error ? reject(error) : resolve(reply))),
      )
    } catch (error) {
      const again = [grpc.status.UNAVAILABLE, grpc.status.DEADLINE_EXCEEDED]
      if (!again.includes(error.code)) throw error
      if (client === master && Date.now() - began > 1000 * (GONE_S + wait_s)) {
        console.log('the master is gone: the job has ended, or is somewhere else')
        process.exit(0)
      }
      if (method !== 'GetServers' && servers) await find_servers(0)
      await pause(pause_ms)
    }
  }
}

const master = connect(edl.Master, master_address)
const replica = { role: 'WORKER', index: 1000, incarnation: `foreign-${randomUUID()}` }

// -- The servers

let servers = null // { version, shards: [client] }

async function find_servers(wait_s) {
  const known = servers?.version ?? 0
  const reply = await call(master, 'GetServers', { known_slot_map_version: wait_s ? known : 0, wait_s }, {}, wait_s)
  if (reply.slot_map_version > known) {
    servers?.shards.forEach((shard) => shard.close())
    servers = { version: reply.slot_map_version, shards: reply.addresses.map((a) => connect(edl.ParameterServer, a)) }
  }
}

const to_shard = (method, shard, request) =>
  call({ [method]: (...more) => servers.shards[shard][method](...more) }, method, request, { 'edl-shard': `${shard}` })

const M64 = (1n << 64n) - 1n
const hash = (text) => Buffer.from(blake2b(Buffer.from(text), { dkLen: 8 })).readBigUInt64LE()
const shard_of_slot = (slot) => Math.floor((slot * servers.shards.length) / 1024)

function shard_of_chunk(tensor, chunk) {
  const turn = Number(hash(`dense/${tensor}`)) / 2 ** 64 + (chunk * (Math.sqrt(5) - 1)) / 2
  return shard_of_slot(Math.floor((turn % 1) * 1024))
}

function shard_of_row(table, id) {
  let z = ((BigInt.asUintN(64, BigInt(id)) ^ hash(`table/${table}`)) + 0x9e3779b97f4a7c15n) & M64
  z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & M64
  z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & M64
  return shard_of_slot(Number(((z ^ (z >> 31n)) >> 33n) % 1024n))
}

const floats = (values) => Buffer.from(Float32Array.from(values).buffer)
const ids = (values) => Buffer.from(BigInt64Array.from(values, BigInt).buffer)

async function init() {
  for (const shard of servers.shards.keys()) {
    const mine = shard_of_chunk('total', 0) === shard
    const chunks = mine ? [{ tensor: 'total', chunk: 0, data: floats([0]) }] : []
    await to_shard('Init', shard, { model_json: JSON.stringify(MODEL), chunks, complete: true })
  }
}

// -- A span: the gradients of some records, applied once by every server

function gradients(records, shard) {
  const mine = records.filter((record) => shard_of_row('counts', record) === shard)
  return {
    dense: shard_of_chunk('total', 0) === shard ? [{ tensor: 'total', chunk: 0, data: floats([records.length]) }] : [],
    tables: mine.length ? [{ table: 'counts', ids: ids(mine), values: floats(mine.map(() => 1)) }] : [],
  }
}

const WORST = ['FENCED', 'UNINITIALIZED', 'MOVED', 'GAP', 'STALE']

// Return where the task stands now, or -1 where the lease is another's.
async function push(task, start, end) {
  const skipped = new Set(task.skips)
  const records = []
  for (let p = start; p < end; p++) if (!skipped.has(p)) records.push(task.start + p)
  for (;;) {
    const pulled = await Promise.all(servers.shards.map((_, shard) => to_shard('Pull', shard, { dense: true })))
    const replies = await Promise.all(
      servers.shards.map((_, shard) =>
        // Every server is told of every span, also where it has no part of it.
        to_shard('Push', shard, {
          span: { task: task.id, attempt: task.attempt, start, end },
          version: pulled[shard].version,
          slot_map_version: 1,
          ...gradients(records, shard),
        }),
      ),
    )
    const worst = WORST.find((outcome) => replies.some((reply) => reply.outcome === outcome))
    if (worst === undefined) return end
    if (worst === 'FENCED') return -1
    if (worst === 'MOVED') throw new Error('the slot map is another: this client is too old')
    if (worst === 'UNINITIALIZED') await init()
    if (worst === 'GAP') {
      const applied = replies.filter((r) => r.outcome === 'GAP').map((r) => r.applied)
      const back = Math.min(...applied)
      if ((await push(task, back, start)) < 0) return -1
    }
  }
}

// -- Tasks

const leases = new Map() // task id -> { attempt, position }
let minibatch_size, drain = false

async function beat() {
  for (let interval_s = 0.5; ; ) {
    await pause(1000 * interval_s, undefined, { ref: false })
    const progress = [...leases].map(([task, { attempt, position }]) => ({ task, attempt, position }))
    const reply = await call(master, 'Heartbeat', { replica, progress, state: 'training' })
    if (reply.fenced) throw new Error('declared lost: begin again as another incarnation')
    drain = reply.drain
    interval_s = reply.interval_s
    if (reply.slot_map_version > servers.version) await find_servers(0)
  }
}

async function train(task) {
  const size = task.end - task.start
  for (let position = task.position; position < size; ) {
    leases.set(task.id, { attempt: task.attempt, position })
    if (drain) return { handed_back: position }
    const stops = [position + minibatch_size, size, ...task.boundaries.filter((b) => b > position)]
    const end = Math.min(...stops)
    position = await push(task, position, end)
    if (position < 0) return null
    console.log(`task ${task.id} has ${position} of ${size}`)
  }
  return { done: true }
}

async function work() {
  for (;;) {
    const wait_s = 5
    const asked = await call(master, 'GetTask', { replica, request_id: randomUUID(), wait_s }, {}, wait_s)
    if (asked.outcome === 'WAIT') continue
    if (asked.outcome !== 'TASK') return asked.outcome
    const { task } = asked
    const is_mine = task.kind === 'TRAIN' // evaluations, and what comes at the end, are for others
    const outcome = is_mine ? await train(task) : { handed_back: task.position }
    leases.delete(task.id)
    if (outcome) {
      const report = { replica, task: task.id, attempt: task.attempt, slot_map_version: servers.version, ...outcome }
      const records = outcome.done ? task.end - task.start - task.skips.length : 0
      await call(master, 'ReportTask', { ...report, records })
    }
    if (!is_mine) await pause(1000)
  }
}

const hello = await call(master, 'Register', { replica, pid: process.pid, host: 'foreign' })
if (hello.fenced) throw new Error('declared lost: begin again as another incarnation')
const settings = JSON.parse(hello.settings_json)
if (settings.shuffle) throw new Error('a job that shuffles needs the order of common/order.py')
minibatch_size = settings.minibatch_size
while (servers === null) await find_servers(10)
await init()
beat().catch((error) => {
  console.error(error)
  process.exit(1)
})
console.log(await work())
process.exit(0)
