// Jobs with BullMQ: `fill PORT COUNT`, `work PORT COUNT`, `send PORT COUNT RATE`, `enqueue PORT COUNT`.
// The same as driftq_jobs.py does; jobs that are done are removed, as an ack does.

import { createRequire } from 'node:module'
import { setTimeout as sleep } from 'node:timers/promises'

const require = createRequire(`${process.env.PEERS}/node/`)
const { Queue, Worker } = require('bullmq')

const [action, port, count, rate] = process.argv.slice(2).map((word, place) => (place ? Number(word) : word))
const connection = { host: '127.0.0.1', port, maxRetriesPerRequest: null }
const options = { removeOnComplete: true, removeOnFail: true }
const say = (found) => process.stdout.write(`${JSON.stringify(found)}\n`)
const now = () => Number(process.hrtime.bigint())

async function work() {
  const delays = []
  let done = 0
  let finish
  const finished = new Promise((resolve) => (finish = resolve))
  const worker = new Worker('jobs', async (job) => void delays.push(now() - job.data.at), {
    connection,
    concurrency: 10,
    autorun: false,
  })
  worker.on('completed', () => ++done === count && finish())
  worker.on('error', (error) => { throw error })
  await worker.waitUntilReady()
  say({ ready: true })
  const cpu = process.cpuUsage()
  const began = now()
  worker.run()
  await finished
  const seconds = (now() - began) / 1e9
  const used = process.cpuUsage(cpu)
  await worker.close()
  delays.sort((one, other) => one - other)
  const quantile = (share) => delays[Math.floor((delays.length * share) / 100)] / 1e6
  say({ per_s: count / seconds, cpu_us: (used.user + used.system) / count, p50_ms: quantile(50), p99_ms: quantile(99) })
}

async function enqueue(queue) {
  const began = now()
  for (let number = 0; number < count; number++) await queue.add('job', { at: 0, number }, options)
  return { per_s: count / ((now() - began) / 1e9) }
}

async function fill(queue) {
  for (let first = 0; first < count; first += 1000) {
    const jobs = Array.from({ length: Math.min(1000, count - first) }, (_, n) => n + first)
    await queue.addBulk(jobs.map((number) => ({ name: 'job', data: { at: 0, number }, opts: options })))
  }
  return {}
}

async function send(queue) {
  const began = now()
  const calls = []
  for (let number = 0; number < count; number++) {
    const delay = (began + (number / rate) * 1e9 - now()) / 1e6
    if (delay > 0) await sleep(delay)
    calls.push(queue.add('job', { at: now() }, options))
  }
  await Promise.all(calls)
  return {}
}

if (action === 'work') {
  await work()
} else {
  const queue = new Queue('jobs', { connection })
  await queue.waitUntilReady()
  say(await { enqueue, fill, send }[action](queue))
  await queue.close()
}
process.exit(0)
