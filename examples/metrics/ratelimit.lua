-- Turns INFO ratelimit and RL.TOP into metrics. For redis_exporter: redis_exporter -script ratelimit.lua
--
-- redis_exporter knows the sections of INFO that the server itself has, and no others. But it runs a script and exports
-- what the script returns: names and numbers in turn, as redis_script_values{key="name"}. A name here is the name of a
-- metric and the values of its labels, with colons between them. prometheus.yml makes labels of them again.
--
-- It runs on Redis 6.2 and later, and Valkey. Its user needs +eval +info +time, and +rl.top for the keys that are denied
-- most. It reads no key and writes nothing. While CLIENT PAUSE WRITE is in force the server holds scripts up. From
-- Redis 7.0 on, and on Valkey, it does not if this is the first line: #!lua flags=no-writes

-- How many of the keys that are denied most are exported; 0 for none. Each is a time series, and its name can be seen by
-- everybody who sees the metrics.
local TOP_KEYS = 10

local pairs_out = {}
local function export(number, ...)
    pairs_out[#pairs_out + 1] = table.concat({...}, ':')
    pairs_out[#pairs_out + 1] = tostring(number)
end

-- A label must be UTF-8, and a key may be any bytes.
local function printable(bytes)
    local function escape(byte)
        return string.format('\\x%02x', string.byte(byte))
    end
    return (string.gsub(string.gsub(bytes, '\\', escape), '[^%w%p ]', escape))
end

local time = redis.call('TIME')
export(time[1] .. '.' .. string.format('%06d', tonumber(time[2])), 'ratelimit_server_time_seconds')

-- Older builds do not have all of them.
local module = {commit = 'unknown', settings_digest = 'unknown'}
local info = redis.call('INFO', 'ratelimit')
for name, value in string.gmatch(info, 'ratelimit_([^:\r\n]+):([^\r\n]*)') do
    local allowed, denied, shadow = string.match(value, '^allowed=(%d+),denied=(%d+),shadow_denied=(%d+)$')
    local command, result = string.match(name, '^(.+)_(%l+)$')
    if allowed then
        local policy = string.match(name, '^policy_(.+)$')
        export(allowed, 'ratelimit_policy_calls_total', policy, 'allowed')
        export(denied, 'ratelimit_policy_calls_total', policy, 'denied')
        export(shadow, 'ratelimit_policy_calls_total', policy, 'shadow_denied')
    elseif name == 'version' or name == 'commit' or name == 'policies_digest' or name == 'settings_digest' then
        module[name] = string.gsub(value, ':', ' ')
    elseif result == 'allowed' or result == 'denied' or result == 'errors' then
        export(value, 'ratelimit_calls_total', command, result)
    elseif string.match(value, '^%d+$') then
        export(value, 'ratelimit_' .. name)
    end
end

if not module.version then
    export(0, 'ratelimit_loaded')
    return pairs_out
end
export(1, 'ratelimit_loaded')
export(1, 'ratelimit_module', module.version, module.commit, module.policies_digest, module.settings_digest)

-- Two masters that share a history are one limit counted twice.
local replication = redis.call('INFO', 'replication')
if string.find(replication, 'role:master', 1, true) then
    local id = string.match(replication, 'master_replid:(%x+)')
    local previous = string.match(replication, 'master_replid2:(%x+)')
    export(1, 'ratelimit_master', id, previous)
end

if TOP_KEYS > 0 then
    local top = redis.pcall('RL.TOP', 'COUNT', TOP_KEYS)
    export(top.err and 0 or 1, 'ratelimit_top_readable')
    for _, entry in ipairs(top) do
        export(entry[3], 'ratelimit_top_denied', entry[2], printable(entry[1]))
    end
end
return pairs_out
