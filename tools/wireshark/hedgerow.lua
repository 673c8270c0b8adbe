-- Wireshark and tshark read Hedgerow's datagrams with this: sensor packets and multicast frames.
--
--   wireshark -X lua_script:tools/wireshark/hedgerow.lua
--
-- or copy it into the folder "Personal Lua Plugins" (Help > About Wireshark > Folders). Both protocols
-- are known by their ports, 12345, and 18514 and 18515. On other ports they are recognised by their contents where
-- that is safe, and "Decode As…" does the rest: -d udp.port==9999,hedgerow.sensor
--
-- docs/sensors.md and docs/multicast.md define the formats. Whatever our decoders drop is marked here as
-- malformed, with the reason; a packet that the capture cut short is not.

local SENSOR_PORT = 12345
local GROUPS_PORT, MEMBERS_PORT = 18514, 18515

-- Errors that a reader raises about the packet; every other error is a mistake in this file.
local Malformed = {}

local function malformed(...)
    error(setmetatable({ reason = string.format(...) }, Malformed))
end

-- Runs reader(...) and marks the packet when it finds the packet malformed.
local function read_or_mark(buffer, pinfo, tree, expert, reader, ...)
    local ok, problem = pcall(reader, ...)
    if ok then return end
    if getmetatable(problem) ~= Malformed then error(problem, 0) end
    if buffer:len() < buffer:reported_len() then
        pinfo.cols.info:append(" [cut short by the capture]")
        return
    end
    tree:add_proto_expert_info(expert, "Malformed: " .. problem.reason)
    pinfo.cols.info:append(" [Malformed: " .. problem.reason .. "]")
end

-- Set members are "address port": where a protocol was seen to be spoken.
local function endpoint(address, port)
    return tostring(address) .. " " .. port
end


-- Sensor packets ------------------------------------------------------------------------------------

local sensor = Proto("hedgerow.sensor", "Hedgerow Sensor Protocol")

local SUBSCRIBER, PUBLISHER = 0, 1
local ROLES = { [SUBSCRIBER] = "subscriber", [PUBLISHER] = "publisher" }
local SENSOR_TOPICS = { [1] = "temperature", [2] = "wind speed", [3] = "humidity" }

local sensor_field = {
    port = ProtoField.uint16("hedgerow.sensor.port", "Port", base.DEC),
    role = ProtoField.uint8("hedgerow.sensor.role", "Role", base.DEC, ROLES),
    topic = ProtoField.uint8("hedgerow.sensor.topic", "Topic", base.DEC),
    payload = ProtoField.string("hedgerow.sensor.payload", "Payload"),
}
sensor.fields = sensor_field
local sensor_malformed = ProtoExpert.new(
    "hedgerow.sensor.malformed", "Malformed packet", expert.group.MALFORMED, expert.severity.ERROR)
sensor.experts = { sensor_malformed }

local sensor_endpoints = {}
function sensor.init() sensor_endpoints = {} end

-- (port, role, topic) of the header, or nil and what is wrong with it.
local function parse_sensor_header(buffer)
    if buffer:len() < 8 then return nil, buffer:len() .. " bytes are shorter than the header of 8" end
    local port, role, topic = buffer:raw(0, 8):match("^(.....)(.)(..)$")
    if not port:find("^%d+$") then return nil, "the port is not five digits" end
    if tonumber(port) < 1 or tonumber(port) > 65535 then return nil, "port " .. port .. " does not exist" end
    if not role:find("^[01]$") then return nil, "the role is neither 0, a subscriber, nor 1, a publisher" end
    if not topic:find("^%d+$") then return nil, "the topic is not two digits" end
    return tonumber(port), tonumber(role), tonumber(topic)
end

-- A subscriber hears at the port that it announced, whichever port it asked from.
local function learn_sensor_endpoints(pinfo, port, role)
    if role == SUBSCRIBER then
        sensor_endpoints[endpoint(pinfo.src, port)] = true
        sensor_endpoints[endpoint(pinfo.dst, pinfo.dst_port)] = true
    elseif port == pinfo.dst_port then
        sensor_endpoints[endpoint(pinfo.dst, port)] = true
    end
end

local function read_sensor_packet(buffer, pinfo, tree)
    local port, role, topic = parse_sensor_header(buffer)
    if not port then malformed("%s", role) end
    learn_sensor_endpoints(pinfo, port, role)
    local name = SENSOR_TOPICS[topic] and " (" .. SENSOR_TOPICS[topic] .. ")" or ""
    tree:add(sensor_field.port, buffer(0, 5), port)
    tree:add(sensor_field.role, buffer(5, 1), role)
    tree:add(sensor_field.topic, buffer(6, 2), topic):append_text(name)
    local payload = ""
    if buffer:len() > 8 then
        payload = buffer(8):string(ENC_UTF_8)
        tree:add(sensor_field.payload, buffer(8), payload)
    end
    local topic_text = string.format("topic %02d%s", topic, name)
    if role == SUBSCRIBER then
        pinfo.cols.info:set(string.format("Subscribe to %s at port %d", topic_text, port))
    else
        pinfo.cols.info:set(string.format("Publish %s: %s", topic_text, payload))
    end
end

function sensor.dissector(buffer, pinfo, tree)
    pinfo.cols.protocol:set("Sensor")
    pinfo.cols.info:set("")
    local subtree = tree:add(sensor, buffer())
    read_or_mark(buffer, pinfo, subtree, sensor_malformed, read_sensor_packet, buffer, pinfo, subtree)
    return buffer:len()
end

-- Eight digits alone begin many a text, a date for one. The port among them must fit the datagram too:
-- a publisher names the broker's, on the way there and, forwarded, from there; a subscriber its own.
local function is_sensor_packet(buffer, pinfo)
    if sensor_endpoints[endpoint(pinfo.dst, pinfo.dst_port)] then return true end
    local port, role = parse_sensor_header(buffer)
    if not port then return false end
    return port == pinfo.src_port or (role == PUBLISHER and port == pinfo.dst_port)
end

sensor:register_heuristic("udp", function(buffer, pinfo, tree)
    if not is_sensor_packet(buffer, pinfo) then return false end
    sensor.dissector(buffer, pinfo, tree)
    return true
end)
DissectorTable.get("udp.port"):add(SENSOR_PORT, sensor)


-- Multicast frames ----------------------------------------------------------------------------------

local multicast = Proto("hedgerow.multicast", "Hedgerow Multicast Frame")

local VERSION = 1
local HEADER_BYTES, SEAL_BYTES, TAG_BYTES = 32, 12, 16
local MAX_ORIGIN_BYTES, MAX_RANGES, MAX_NAMES = 64, 64, 512
local MAX_ACKNOWLEDGED = 64
local MAX_MICROSECONDS = UInt64(0, 0x100000) -- 2^52
local DATA, HEARTBEAT, REPAIR, GONE, TOPICS, INTEREST = 1, 2, 3, 4, 5, 6
local PRESENCE, HELLO, WELCOME, CHALLENGE, PROOF, LEAVE = 7, 8, 9, 10, 11, 12
local ACKNOWLEDGEMENT, ASK = 13, 14
local KINDS = {
    [DATA] = "DATA", [HEARTBEAT] = "HEARTBEAT", [REPAIR] = "REPAIR", [GONE] = "GONE",
    [TOPICS] = "TOPICS", [INTEREST] = "INTEREST", [PRESENCE] = "PRESENCE", [HELLO] = "HELLO",
    [WELCOME] = "WELCOME", [CHALLENGE] = "CHALLENGE", [PROOF] = "PROOF", [LEAVE] = "LEAVE",
    [ACKNOWLEDGEMENT] = "ACKNOWLEDGEMENT", [ASK] = "ASK",
}
local SEALED, TOPIC, FRAGMENT, FOREIGN = 0x0001, 0x0002, 0x0004, 0x0008
local TIME, PROPERTIES, BATCH, RETAIN, HELD = 0x0010, 0x0020, 0x0040, 0x0080, 0x0100
local AGE = 0x0800
local QOS_SHIFT = 9
local FLAGS = {
    { "sealed", SEALED }, { "topic", TOPIC }, { "fragment", FRAGMENT }, { "foreign", FOREIGN },
    { "time", TIME }, { "properties", PROPERTIES }, { "batch", BATCH }, { "retain", RETAIN },
    { "held", HELD }, { "qos_1", 0x0200 }, { "qos_2", 0x0400 }, { "age", AGE },
}
local KNOWN_FLAGS = 0x0FFF
local NOT_IN_BATCH = FRAGMENT + FOREIGN + TIME + PROPERTIES + RETAIN + HELD

local frame_malformed = ProtoExpert.new(
    "hedgerow.multicast.malformed", "Malformed frame", expert.group.MALFORMED, expert.severity.ERROR)
local frame_wrong_crc = ProtoExpert.new(
    "hedgerow.multicast.wrong_crc", "CRC of another topic", expert.group.CHECKSUM, expert.severity.WARN)
multicast.experts = { frame_malformed, frame_wrong_crc }

local field = {}
local function define(make, name, title, ...)
    field[name] = ProtoField[make]("hedgerow.multicast." .. name, title, ...)
end
define("uint8", "version", "Version", base.DEC)
define("uint8", "kind", "Kind", base.DEC, KINDS)
define("uint16", "flags", "Flags", base.HEX)
for _, flag in ipairs(FLAGS) do
    define("bool", "flags." .. flag[1], flag[1]:upper(), 16, nil, flag[2])
end
define("uint32", "crc", "CRC-32 of the topic", base.HEX)
define("bytes", "sender", "Sender")
define("uint64", "stream_sequence", "Stream sequence", base.DEC)
define("uint64", "sequence", "Message sequence", base.DEC)
define("uint32", "key_id", "Key id", base.DEC)
define("uint64", "counter", "Counter", base.DEC)
define("bytes", "encrypted", "Encrypted")
define("bytes", "tag", "Authentication tag")
define("string", "topic", "Topic")
define("string", "filter", "Filter")
define("uint16", "fragment.index", "Fragment index", base.DEC)
define("uint16", "fragment.count", "Fragment count", base.DEC)
define("bytes", "fragment.piece", "Piece of a message")
define("string", "id.origin", "Origin")
define("uint64", "id.epoch", "Epoch", base.DEC)
define("uint64", "id.sequence", "Sequence", base.DEC)
define("absolute_time", "published_at", "Published at", base.UTC)
define("bytes", "properties", "Properties")
define("string", "property", "Property")
define("bytes", "payload", "Payload")
define("uint64", "oldest", "Oldest sequence to be had", base.DEC)
define("bytes", "stream_of", "Stream of")
define("uint32", "age_ms", "Sent first, ms ago", base.DEC)
define("uint32", "newer_than_ms", "Published within, ms", base.DEC)
define("uint64", "range.first", "First", base.DEC)
define("uint16", "range.count", "Count", base.DEC)
define("bytes", "member", "Member")
define("uint64", "last", "Last sequence that is gone", base.DEC)
define("uint64", "missed", "Messages missed by that", base.DEC)
define("uint32", "window", "Bytes that may be under way", base.DEC)
define("bytes", "taken.topic", "Hash of the topic")
define("uint64", "taken.last", "Last sequence that is taken", base.DEC)
define("bool", "wants_values", "Wants last values")
define("bytes", "cookie", "Cookie")
define("bool", "wants_copies", "Wants copies")
define("bytes", "nonce", "Nonce")
multicast.fields = field

-- Topics by CRC. Most frames carry no topic, since their receivers know it; others announced it.
local topics_seen = {}
local multicast_endpoints = {}
function multicast.init()
    topics_seen = {}
    multicast_endpoints = {}
end

local CRC_TABLE = {}
for byte = 0, 255 do
    local crc = byte
    for _ = 1, 8 do
        local shifted = bit.rshift(crc, 1)
        crc = bit.band(crc, 1) == 1 and bit.bxor(shifted, 0xEDB88320) or shifted
    end
    CRC_TABLE[byte] = crc
end

local function crc32(text)
    local crc = 0xFFFFFFFF
    for position = 1, #text do
        local entry = CRC_TABLE[bit.band(bit.bxor(crc, text:byte(position)), 0xFF)]
        crc = bit.bxor(bit.rshift(crc, 8), entry)
    end
    return bit.bnot(crc) % 0x100000000
end

-- RFC 3629 §4. A sequence is replaced by a byte of ASCII, so that no two halves come together.
local UTF8_SEQUENCES = {
    "[\194-\223][\128-\191]", "\224[\160-\191][\128-\191]", "\237[\128-\159][\128-\191]",
    "[\225-\236\238\239][\128-\191][\128-\191]", "\240[\144-\191][\128-\191][\128-\191]",
    "\244[\128-\143][\128-\191][\128-\191]", "[\241-\243][\128-\191][\128-\191][\128-\191]",
}

local function is_utf8(text)
    for _, sequence in ipairs(UTF8_SEQUENCES) do text = text:gsub(sequence, "x") end
    return not text:find("[\128-\255]")
end

local function is_topic(text)
    return text ~= "" and not text:find("%z")
end

local function is_topic_name(text)
    return is_topic(text) and not text:find("[#+]")
end

local function is_topic_filter(text)
    for level in (text .. "/"):gmatch("([^/]*)/") do
        if #level > 1 and level:find("[#+]") then return false end
    end
    local hash = text:find("#", 1, true)
    return is_topic(text) and (hash == nil or hash == #text)
end

-- A position in the datagram that never goes beyond its end.
local Cursor = {}
Cursor.__index = Cursor

local function new_cursor(buffer, position)
    return setmetatable({ buffer = buffer, position = position }, Cursor)
end

function Cursor:left() return self.buffer:len() - self.position end

function Cursor:take(count)
    if count > self:left() then malformed("the frame ends too soon") end
    local range = self.buffer(self.position, count)
    self.position = self.position + count
    return range
end

function Cursor:rest() return self:take(self:left()) end

-- A text behind its length, as the range of both and a string.
function Cursor:text(length_bytes)
    local start = self.position
    local length = self:take(length_bytes):uint()
    local text = length > 0 and self:take(length):raw() or ""
    if not is_utf8(text) then malformed("a text that is not UTF-8") end
    return self.buffer(start, length_bytes + length), text
end

function Cursor:add(tree, name, count)
    local range = self:take(count)
    tree:add(field[name], range)
    return range
end

-- An empty range is none to Wireshark: the field is added all the same, with nothing in it.
function Cursor:add_bytes(tree, name, count)
    if count > 0 then return tree:add(field[name], self:take(count)) end
    return tree:add(field[name], self.buffer(self.position - 1, 0), "")
end

local function read_names(cursor, tree, name, is_valid)
    local names = {}
    while cursor:left() > 0 do
        local range, text = cursor:text(2)
        if not is_valid(text) then malformed("%q is no topic %s", text, name == "topic" and "name" or name) end
        tree:add(field[name], range, text)
        names[#names + 1] = text
        if #names > MAX_NAMES then malformed("more than %d names", MAX_NAMES) end
    end
    return names
end

-- MQTT 5 §2.2.2.2, those that a message may keep: identifier = { name, how its value is read }.
local function read_byte(cursor) return tostring(cursor:take(1):uint()) end
local function read_four_bytes(cursor) return tostring(cursor:take(4):uint()) end
local function read_text(cursor)
    local _, text = cursor:text(2)
    if text:find("%z") then malformed("a property with U+0000") end
    return text
end
local function read_binary(cursor)
    local length = cursor:take(2):uint()
    return length > 0 and cursor:take(length):bytes():tohex(true) or ""
end
local function read_pair(cursor)
    local name = read_text(cursor)
    return name .. ": " .. read_text(cursor)
end
local USER_PROPERTY = 0x26
local PUBLISH_PROPERTIES = {
    [0x01] = { "payload_format_indicator", read_byte },
    [0x02] = { "message_expiry_interval", read_four_bytes },
    [0x03] = { "content_type", read_text },
    [0x08] = { "response_topic", read_text },
    [0x09] = { "correlation_data", read_binary },
    [USER_PROPERTY] = { "user_property", read_pair },
}

local function read_variable_byte_integer(cursor)
    local value, factor = 0, 1
    for index = 1, 4 do
        local byte = cursor:take(1):uint()
        if byte == 0 and index > 1 then malformed("a property length that is longer than needed") end
        value = value + (byte % 128) * factor
        if byte < 128 then return value end
        factor = factor * 128
    end
    malformed("a property length of more than four bytes")
end

local function read_properties(cursor, tree)
    local start = cursor.position
    local length = read_variable_byte_integer(cursor)
    if length > cursor:left() then malformed("properties longer than their frame") end
    local stop = cursor.position + length
    local subtree = tree:add(field.properties, cursor.buffer(start, stop - start))
    local inside = new_cursor(cursor.buffer(0, stop):tvb(), cursor.position)
    local found = {}
    while inside:left() > 0 do
        local at = inside.position
        local identifier = inside:take(1):uint()
        local rule = PUBLISH_PROPERTIES[identifier]
        if not rule then malformed("property 0x%02x, which no message keeps", identifier) end
        local name, value = rule[1], rule[2](inside)
        if found[name] and identifier ~= USER_PROPERTY then malformed("%s twice", name) end
        if name == "payload_format_indicator" and value ~= "0" and value ~= "1" then
            malformed("payload_format_indicator %s", value)
        end
        if name == "response_topic" and value:find("[#+]") then malformed("response_topic %q", value) end
        found[name] = true
        subtree:add(field.property, cursor.buffer(at, inside.position - at), name .. " = " .. value)
    end
    cursor.position = stop
end

local function read_message_id(cursor, tree)
    local range, origin = cursor:text(1)
    if #origin == 0 or #origin > MAX_ORIGIN_BYTES then malformed("an origin of %d bytes", #origin) end
    tree:add(field["id.origin"], range, origin)
    local epoch, sequence = cursor:add(tree, "id.epoch", 8), cursor:add(tree, "id.sequence", 8)
    if epoch(0, 1):uint() >= 0x40 or sequence(0, 1):uint() >= 0x40 then malformed("a message id beyond 2^62") end
    return string.format(" id %s/%s/%s", origin, epoch:uint64(), sequence:uint64())
end

local function read_batch(cursor, tree)
    local count = 0
    while cursor:left() > 0 do
        cursor:add_bytes(tree, "payload", cursor:take(2):uint())
        count = count + 1
    end
    return string.format(", %d messages", count)
end

local function read_data(cursor, tree, flags)
    local function has(flag) return bit.band(flags, flag) ~= 0 end
    local qos = bit.band(bit.rshift(flags, QOS_SHIFT), 3)
    local info = string.format(" QoS %d", qos)
    if has(RETAIN) then info = info .. " retain" end
    if has(HELD) then info = info .. " held" end
    if has(AGE) then info = info .. string.format(", again after %d ms", cursor:add(tree, "age_ms", 4):uint()) end
    if qos == 3 then malformed("QoS 3") end
    if has(BATCH) and has(NOT_IN_BATCH) then malformed("flags 0x%04x in a batch", flags) end
    if has(FRAGMENT) then
        local index = cursor:add(tree, "fragment.index", 2):uint()
        local count = cursor:add(tree, "fragment.count", 2):uint()
        if index >= count or count < 2 then malformed("fragment %d of %d", index, count) end
        if cursor:left() == 0 then malformed("a fragment with nothing in it") end
        cursor:add(tree, "fragment.piece", cursor:left())
        return info .. string.format(", fragment %d of %d", index + 1, count)
    end
    if has(BATCH) then return info .. read_batch(cursor, tree) end
    if has(FOREIGN) then info = info .. read_message_id(cursor, tree) end
    if has(TIME) then
        local range = cursor:take(8)
        local microseconds = range:uint64()
        if microseconds > MAX_MICROSECONDS then malformed("published %s microseconds after 1970", microseconds) end
        local rest = (microseconds % 1000000):tonumber()
        tree:add(field.published_at, range, NSTime.new((microseconds / 1000000):tonumber(), rest * 1000))
    end
    if has(PROPERTIES) then read_properties(cursor, tree) end
    local length = cursor:left()
    cursor:add_bytes(tree, "payload", length)
    return info .. string.format(", %d bytes", length)
end

local function read_repair(cursor, tree)
    local sender = cursor:add(tree, "stream_of", 8)
    cursor:add(tree, "newer_than_ms", 4)
    if cursor:left() == 0 or cursor:left() % 10 ~= 0 or cursor:left() > MAX_RANGES * 10 then
        malformed("a repair request with a torn range")
    end
    local ranges = {}
    while cursor:left() > 0 do
        local first, count = cursor:add(tree, "range.first", 8), cursor:add(tree, "range.count", 2)
        ranges[#ranges + 1] = string.format("%s+%d", first:uint64(), count:uint())
    end
    return string.format(" of %s: %s", sender:bytes():tohex(true), table.concat(ranges, ", "))
end

local function read_acknowledgement(cursor, tree)
    local sender = cursor:add(tree, "stream_of", 8)
    cursor:add(tree, "window", 4)
    if cursor:left() % 16 ~= 0 or cursor:left() > MAX_ACKNOWLEDGED * 16 then
        malformed("an acknowledgement with a torn stream")
    end
    local taken = {}
    while cursor:left() > 0 do
        cursor:add(tree, "taken.topic", 8)
        local last = cursor:add(tree, "taken.last", 8)
        local has_ceased = last(0, 4):uint() == 0xffffffff and last(4, 4):uint() == 0xffffffff
        if last(0, 1):uint() >= 0x40 and not has_ceased then
            malformed("an acknowledgement beyond the last stream sequence")
        end
        taken[#taken + 1] = has_ceased and "no longer" or tostring(last:uint64())
    end
    return string.format(" of %s: %s", sender:bytes():tohex(true), table.concat(taken, ", "))
end

local function read_member_and_nonce(cursor, tree)
    local member = cursor:add(tree, "member", 8)
    cursor:add(tree, "nonce", 16)
    return " for " .. member:bytes():tohex(true)
end

-- What follows the topic, by kind. Each returns what it adds to the info column.
local BODIES = {
    [DATA] = read_data,
    [HEARTBEAT] = function(cursor, tree)
        return string.format(", kept from %s on", cursor:add(tree, "oldest", 8):uint64())
    end,
    [REPAIR] = read_repair,
    [GONE] = function(cursor, tree)
        cursor:add(tree, "member", 8)
        local info = string.format(", up to %s", cursor:add(tree, "last", 8):uint64())
        if cursor:left() < 8 then return info end
        return info .. string.format(", %s messages", cursor:add(tree, "missed", 8):uint64())
    end,
    [TOPICS] = function(cursor, tree)
        local names = read_names(cursor, tree, "topic", is_topic_name)
        for _, name in ipairs(names) do topics_seen[crc32(name)] = name end
        return " " .. table.concat(names, ", ")
    end,
    [INTEREST] = function(cursor, tree)
        local values = cursor:add(tree, "wants_values", 1):uint() ~= 0 and " with values" or ""
        return " " .. table.concat(read_names(cursor, tree, "filter", is_topic_filter), ", ") .. values
    end,
    [HELLO] = function(cursor, tree)
        cursor:add(tree, "cookie", 8)
        local copies = cursor:add(tree, "wants_copies", 1):uint() ~= 0 and ", copies please: " or " "
        return copies .. table.concat(read_names(cursor, tree, "filter", is_topic_filter), ", ")
    end,
    [WELCOME] = function(cursor, tree)
        if cursor:left() ~= 8 then malformed("a cookie of another length") end
        cursor:add(tree, "cookie", 8)
        return ""
    end,
    [CHALLENGE] = read_member_and_nonce,
    [PROOF] = read_member_and_nonce,
    [ACKNOWLEDGEMENT] = read_acknowledgement,
}

-- What is wrong with the header; nil when nothing is.
local function check_header(buffer)
    if buffer:len() < HEADER_BYTES then return buffer:len() .. " bytes are no frame" end
    local version, kind, flags = buffer(0, 1):uint(), buffer(1, 1):uint(), buffer(2, 2):uint()
    if version ~= VERSION then return "version " .. version end
    if not KINDS[kind] then return "kind " .. kind end
    local allowed = kind == DATA and KNOWN_FLAGS or SEALED + TOPIC
    if bit.band(flags, bit.bnot(allowed)) ~= 0 then
        return string.format("flags 0x%04x in %s", flags, KINDS[kind])
    end
    if buffer(16, 1):uint() >= 0x40 then return "a stream sequence beyond 2^62" end
    if buffer(24, 1):uint() >= 0x40 then return "a message sequence beyond 2^62" end
    return nil
end

local function add_header(buffer, tree)
    tree:add(field.version, buffer(0, 1))
    tree:add(field.kind, buffer(1, 1))
    local flags = tree:add(field.flags, buffer(2, 2))
    for _, flag in ipairs(FLAGS) do flags:add(field["flags." .. flag[1]], buffer(2, 2)) end
    local crc = tree:add(field.crc, buffer(4, 4))
    tree:add(field.sender, buffer(8, 8))
    tree:add(field.stream_sequence, buffer(16, 8))
    tree:add(field.sequence, buffer(24, 8))
    return crc
end

local function read_seal(cursor, tree)
    if cursor:left() < SEAL_BYTES + TAG_BYTES then malformed("too short to be sealed") end
    local key_id = cursor:add(tree, "key_id", 4)
    cursor:add(tree, "counter", 8)
    cursor:add_bytes(tree, "encrypted", cursor:left() - TAG_BYTES)
    cursor:add(tree, "tag", TAG_BYTES)
    return string.format(", encrypted with key %d", key_id:uint())
end

local function read_topic(cursor, tree, crc_item, crc)
    local range, topic = cursor:text(2)
    if not is_topic_name(topic) then malformed("%q is no topic name", topic) end
    tree:add(field.topic, range, topic)
    local right = crc32(topic)
    if crc == right then
        topics_seen[crc] = topic
    else
        crc_item:add_proto_expert_info(frame_wrong_crc, string.format("The topic's CRC is 0x%08x", right))
    end
    return topic
end

local function read_frame(buffer, pinfo, tree)
    local problem = check_header(buffer)
    if buffer:len() < HEADER_BYTES then malformed("%s", problem) end
    local crc_item = add_header(buffer, tree)
    if problem then malformed("%s", problem) end
    local kind, flags, crc = buffer(1, 1):uint(), buffer(2, 2):uint(), buffer(4, 4):uint()
    local info = KINDS[kind]
    pinfo.cols.info:set(info)
    local cursor = new_cursor(buffer, HEADER_BYTES)
    local topic = topics_seen[crc]
    if bit.band(flags, SEALED) == 0 and bit.band(flags, TOPIC) ~= 0 then
        topic = read_topic(cursor, tree, crc_item, crc)
    elseif topic then
        tree:add(field.topic, buffer(4, 4), topic):set_generated()
    end
    if topic then info = info .. " " .. topic end
    if buffer(16, 8):uint64() > UInt64(0) then info = info .. string.format(" #%s", buffer(16, 8):uint64()) end
    pinfo.cols.info:set(info)
    if bit.band(flags, SEALED) ~= 0 then
        info = info .. read_seal(cursor, tree)
    elseif BODIES[kind] then
        info = info .. BODIES[kind](cursor, tree, flags)
    end
    pinfo.cols.info:set(info)
end

function multicast.dissector(buffer, pinfo, tree)
    pinfo.cols.protocol:set("Hedgerow")
    pinfo.cols.info:set("")
    local subtree = tree:add(multicast, buffer())
    read_or_mark(buffer, pinfo, subtree, frame_malformed, read_frame, buffer, pinfo, subtree)
    return buffer:len()
end

-- A frame begins with no magic number. Its first four bytes leave one datagram in a few thousand by chance;
-- a DATA frame also has the CRC of a topic, and no stream gets to 2^62.
local function is_frame(buffer, pinfo)
    if multicast_endpoints[endpoint(pinfo.dst, pinfo.dst_port)] then return true end
    if check_header(buffer) then return false end
    if buffer(16, 1):uint() >= 0x40 then return false end
    return buffer(1, 1):uint() ~= DATA or buffer(4, 4):uint() ~= 0
end

multicast:register_heuristic("udp", function(buffer, pinfo, tree)
    if not is_frame(buffer, pinfo) then return false end
    multicast_endpoints[endpoint(pinfo.dst, pinfo.dst_port)] = true
    multicast.dissector(buffer, pinfo, tree)
    return true
end)
DissectorTable.get("udp.port"):add(GROUPS_PORT, multicast)
DissectorTable.get("udp.port"):add(MEMBERS_PORT, multicast)
