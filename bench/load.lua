-- The requests of wrk, the identities in turn, and its summary as one line of JSON.
local requests, sent = {}, 0

function init(arguments)
    for identity = 1, tonumber(arguments[1]) do
        requests[identity] = wrk.format("GET", "/", { ["X-User"] = "user:" .. identity })
    end
end

function request()
    sent = sent + 1
    return requests[(sent - 1) % #requests + 1]
end

function done(summary, latency)
    io.write(string.format(
        '\n{"requests": %d, "seconds": %f, "p50": %f, "p99": %f, "refused": %d, "failed": %d}\n',
        summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
        summary.errors.status, summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
    ))
end
