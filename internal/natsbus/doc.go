// Package natsbus carries KV events over NATS: a [Core] bus, a durable [Stream] on JetStream, and an embedded [Server].
package natsbus
