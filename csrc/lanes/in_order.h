/* Two words for lanes whose bytes and floats stand in the same order, with nothing to gain from another. */
#ifndef GGUFX_LANES_IN_ORDER_H
#define GGUFX_LANES_IN_ORDER_H

/* Signed codes * d; unsigned codes * d + m as product_plus has it. */
INLINE void store_scaled_bfloats(uint16_t *p, bytes codes, floats d, int finite, int past_cache) {
    store_bfloats(p, multiply(from_signed(codes), d), finite, past_cache);
}
INLINE void store_affine_bfloats(uint16_t *p, bytes codes, floats d, floats m, int finite, int past_cache) {
    store_bfloats(p, product_plus(from_unsigned(codes), d, m), finite, past_cache);
}

#endif
