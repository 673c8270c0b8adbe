// MQTT.js against a broker: one scenario a process, named by the first argument. Prints one JSON line
// with what was seen; the test decides whether that is right.
//   node mqttjs_peer.cjs SCENARIO URL VERSION NAME [CA-FILE]
"use strict";
const fs = require("fs");
const mqtt = require("mqtt");

const [scenario, url, version, name, authority] = process.argv.slice(2);

async function connect(role, options = {}) {
  const client = mqtt.connect(url, {
    clientId: `${name}-${role}`,
    protocolVersion: Number(version),
    protocolId: version === "3" ? "MQIsdp" : "MQTT",
    ca: authority ? fs.readFileSync(authority) : undefined,
    reconnectPeriod: 0,
    ...options,
  });
  client.inbox = [];
  client.waiting = [];
  client.on("message", (topic, payload, packet) => {
    client.inbox.push({ topic, payload: payload.toString(), qos: packet.qos, retain: packet.retain,
      properties: packet.properties });
    client.waiting.forEach((look) => look());
  });
  const connack = new Promise((resolve) => client.once("connect", resolve));
  const failed = new Promise((_, reject) => client.once("error", reject));
  client.connack = await Promise.race([connack, failed]);
  return client;
}

function expect(client, count) {
  return new Promise((resolve) => {
    const look = () => client.inbox.length >= count && resolve(client.inbox);
    client.waiting.push(look);
    look();
  });
}

const scenarios = {
  async every_qos() {
    const subscriber = await connect("s"), publisher = await connect("p");
    await subscriber.subscribeAsync(`${name}/+`, { qos: 2 });
    const sent = [];
    for (let number = 0; number < 30; number++) {
      for (const qos of [0, 1, 2]) sent.push(publisher.publishAsync(`${name}/${qos}`, `${number}`, { qos }));
    }
    await Promise.all(sent);
    const arrived = await expect(subscriber, 90);
    await Promise.all([subscriber.endAsync(), publisher.endAsync()]);
    return arrived.map(({ topic, payload, qos }) => [topic, payload, qos]);
  },

  async session_and_retained() {
    const kept = { clean: false, properties: version === "5" ? { sessionExpiryInterval: 60 } : undefined };
    const first = await connect("s", kept);
    await first.subscribeAsync(`${name}/#`, { qos: 1 });
    await first.endAsync();
    const publisher = await connect("p");
    for (const number of [0, 1, 2]) {
      await publisher.publishAsync(`${name}/${number}`, `${number}`, { qos: 1, retain: true });
    }
    const second = await connect("s", kept);
    const queued = [...await expect(second, 3)];
    second.inbox.length = 0;
    await second.subscribeAsync(`${name}/#`, { qos: 1 });
    const retained = [...await expect(second, 3)];
    for (const number of [0, 1, 2]) {
      await publisher.publishAsync(`${name}/${number}`, "", { qos: 1, retain: true });
    }
    await Promise.all([second.endAsync(), publisher.endAsync()]);
    return { present: second.connack.sessionPresent, queued, retained };
  },

  async will() {
    const watcher = await connect("w");
    await watcher.subscribeAsync(`${name}/#`, { qos: 1 });
    const lost = await connect("l", { will: { topic: `${name}/will`, payload: "gone", qos: 1, retain: false } });
    lost.stream.destroy();
    const [message] = await expect(watcher, 1);
    await watcher.endAsync();
    return message;
  },

  // MQTT 5: our aliases to the client and its own to us, and properties.
  async aliases_and_properties() {
    const subscriber = await connect("s", { properties: { topicAliasMaximum: 10 } });
    const publisher = await connect("p", { autoAssignTopicAlias: true, autoUseTopicAlias: true });
    await subscriber.subscribeAsync(`${name}/#`, { qos: 1, properties: { subscriptionIdentifier: 9 } });
    for (let number = 0; number < 6; number++) {
      await publisher.publishAsync(`${name}/${number % 2}`, `${number}`, {
        qos: 1,
        properties: { contentType: "text/plain", userProperties: { a: ["1", "2"] } },
      });
    }
    const arrived = await expect(subscriber, 6);
    await Promise.all([subscriber.endAsync(), publisher.endAsync()]);
    return { arrived, used: publisher.topicAliasSend ? publisher.topicAliasSend.length : 0 };
  },
};

scenarios[scenario]().then(
  (seen) => console.log(JSON.stringify(seen)),
  (error) => { console.error(error); process.exit(1); },
);
