// Package wire is what KV events are on the wire: the events, every form in which vLLM, SGLang and TensorRT-LLM send them
// ([DecodeBatch]) and the one in which Tandem does ([AppendBatch]), the NATS subjects they travel on, and the headers that
// number them.
package wire
